"""Leases: a worker's proof of life, route by route."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from runtime.broker import pages
from runtime.broker.connection import Connection
from runtime.broker.keys import RouteKeys
from runtime.broker.scripts import call
from runtime.errors import BrokerError

PAGE = 100
"""Entries that one call of ``leave`` parks."""


class LeaseState(IntEnum):
    """What renew says. DEAD is final: the worker needs a new name."""

    RENEWED = 1
    REGISTERED = 2
    DEAD = -1


class Leases:
    """Keeps a worker's leases, and gives them up."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def renew(self, keys: Sequence[RouteKeys], *, worker: str, ttl: float) -> list[LeaseState]:
        """Make the worker's lease on each route end ``ttl`` seconds from now, in one round trip.

        Where Redis refuses one, the others are renewed all the same, and that error is raised.
        """
        states: dict[int, int] = {}
        problem: BrokerError | None = None
        for part, reply in await pages.ask(
            self._connection, keys, lambda part: call("renew", [keys[i].leases for i in part], int(ttl * 1000), worker)
        ):
            if isinstance(reply, BrokerError):
                problem = reply
            else:
                states |= zip(part, reply, strict=True)
        if problem is not None:
            raise problem
        for i, state in states.items():
            if state == 0:
                raise BrokerError(f"{keys[i].leases} is no key of leases")
        return [LeaseState(states[i]) for i in range(len(keys))]

    async def unstarted(self, keys: RouteKeys, *, worker: str, ids: Sequence[str], delay: float = 0.0) -> int:
        """Give back entries that were read and never begun, due ``delay`` seconds from now.

        Returns how many were still this worker's.
        """
        if not ids:
            return 0
        asked = call("unstarted", [keys.stream, keys.due], keys.group, worker, int(delay * 1000), *ids)
        (given,) = await self._connection.run(asked)
        return int(given)

    async def leave(self, keys: RouteKeys, *, worker: str, ends: bool = True) -> None:
        """Give back whatever is still this worker's on the route, then the consumer and the lease.

        A worker that ``ends`` cannot come back under its name; one that only stops to read the route can.
        """
        names = [keys.stream, keys.due, keys.leases, keys.obits]
        asked = call("leave", names, keys.group, worker, PAGE, int(ends))
        while (await self._connection.run(asked))[0]:
            pass

    async def excuse(self, keys: Sequence[RouteKeys], *, worker: str) -> None:
        """Say that the worker's death, should it come, is nobody's fault (it was asked to stop)."""
        for reply in await self._connection.pipeline([("HSET", k.obits, worker, "") for k in keys]):
            _sound(reply)


def _sound(reply: Any) -> Any:
    if isinstance(reply, BrokerError):
        raise reply
    return reply
