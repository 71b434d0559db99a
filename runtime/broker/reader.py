"""Reading: new and due entries, waiting for more, and what is pending for a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.broker.connection import Command, Connection
from runtime.broker.delivery import Delivery, Fetched
from runtime.broker.keys import RouteKeys
from runtime.broker.scripts import Call, call, refuse
from runtime.errors import BrokerError


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Ask for up to ``n`` entries of a route for ``worker``.

    ``probe``: if the route is blocked, take one entry to try it with, at most once every ``probe_interval`` seconds.
    """

    keys: RouteKeys
    worker: str
    n: int
    probe: bool = False
    probe_interval: float = 30.0


class Reader:
    """Reads entries for a worker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: set[int] = set()

    async def fetch(self, requests: Sequence[FetchRequest]) -> list[Fetched | BrokerError]:
        """Due and new entries of many routes in one round trip; an answer or the error for each, in order.

        GroupMissing: create the group and ask again. LeaseLost: renew and ask again. What a lost answer handed out is
        in ``pending``. While unread entries exist, at most half of ``n`` are due ones.
        """
        replies = await self._connection.run_all([_fetch(request) for request in requests])
        return [reply if isinstance(reply, BrokerError) else _fetched(reply) for reply in replies]

    async def wait(self, tails: Mapping[str, str], timeout: float) -> set[str]:  # noqa: ASYNC109  it is Redis that waits
        """Wait up to ``timeout`` seconds for an entry after its tail on any stream; the streams that have one.

        Hands out nothing. Without streams it returns at once.
        """
        if not tails:
            return set()
        streams = list(tails)
        block = max(1, int(timeout * 1000))
        command: Command = ("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", *streams, *tails.values())
        async with self._connection.blocking() as line:
            self._waiting.add(line.client_id)
            try:
                reply = await line.send(*command, seconds=timeout)
            finally:
                self._waiting.discard(line.client_id)
        return {stream.decode() for stream, _ in reply or ()}

    async def unblock(self) -> None:
        """Let every ``wait`` of this process return at once, with nothing; its connection lives on."""
        await self._connection.pipeline([("CLIENT", "UNBLOCK", client_id) for client_id in tuple(self._waiting)])

    async def pending(self, keys: RouteKeys, *, worker: str, count: int = 1000) -> list[str]:
        """Ids of entries that are pending for ``worker``, lowest first."""
        reply = await self._connection.command("XPENDING", keys.stream, keys.group, "-", "+", count, worker)
        return [entry[0].decode() for entry in reply]

    async def read_ids(self, keys: RouteKeys, ids: Sequence[str]) -> list[Delivery]:
        """The entries with these ids; an id whose entry is gone is acknowledged and left out."""
        replies = await self._connection.pipeline([("XRANGE", keys.stream, i, i) for i in ids])
        found, gone = [], []
        for entry_id, reply in zip(ids, replies, strict=True):
            if isinstance(reply, BrokerError):
                raise reply
            if reply:
                found.append(delivery(reply[0]))
            else:
                gone.append(entry_id)
        if gone:
            await self._connection.command("XACK", keys.stream, keys.group, *gone)
        return found


def delivery(entry: Any, *, probe: bool = False) -> Delivery:
    """A Delivery from an entry as Redis answers it: the id, and names and values in turn."""
    entry_id, flat = entry
    return Delivery(entry_id.decode(), tuple(zip(flat[::2], flat[1::2], strict=True)), probe)


def _fetch(request: FetchRequest) -> Call:
    keys = request.keys
    interval = int(request.probe_interval * 1000)
    return call(
        "fetch",
        [keys.stream, keys.due, keys.leases, keys.blocked],
        *(keys.group, request.worker, request.n, int(request.probe), interval),
    )


def _fetched(reply: list[Any]) -> Fetched | BrokerError:
    if reply[0] < 0:
        return refuse(reply[0])
    _, entries, more, tail, due, blocked, probe = reply
    return Fetched(
        deliveries=tuple(delivery(entry, probe=bool(probe)) for entry in entries),
        more=bool(more),
        tail=tail.decode(),
        next_due=due if due >= 0 else None,
        blocked=bool(blocked),
    )
