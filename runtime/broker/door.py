"""What a route takes at its door: rates and backlogs, and the room that Redis has left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from runtime.broker.connection import Connection
from runtime.broker.keys import RouteKeys
from runtime.broker.scripts import call
from runtime.errors import BrokerError, BrokerUnavailable
from shared_models.result import RunStatus
from shared_models.route import Bounds, LimitsSpec

_KEPT = 7 * 86400.0
"""Seconds that open events are remembered; one that is older has certainly been looked at."""

_UNRECORDED = 60.0
"""Seconds after which an event without a record counts as one that was never published."""

_PAGE = 500
"""Open events looked at in one go."""


class Admitted(IntEnum):
    """What the door says."""

    YES = 1
    RATE = 2
    TENANT_RATE = 3
    BACKLOG = 4
    TENANT_BACKLOG = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """``wait``: seconds until a rate allows it; ``held``: what a backlog has."""

    admitted: Admitted
    wait: float = 0.0
    held: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that the server's data take, and that they may. ``limit`` 0: as many as there are."""

    used: int
    limit: int

    @property
    def share(self) -> float:
        """How full it is, from 0; 0 where there is no limit."""
        return self.used / self.limit if self.limit else 0.0


class Door:
    """Asks before events are published."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def admit(self, keys: RouteKeys, tenant: str | None, event_ids: Sequence[str], limits: LimitsSpec) -> Answer:
        """Whether the route takes these events of a tenant, all or none. Raises BrokerError."""
        names = [keys.stream, keys.rate(None), keys.rate(tenant or ""), keys.open(tenant or "")]
        args = (*_bounds(limits), *_bounds(limits.tenant), int(_KEPT * 1000))
        code, value = await self._connection.run(call("admit", names, *args, *event_ids))
        admitted = Admitted(code)
        if admitted in (Admitted.RATE, Admitted.TENANT_RATE):
            return Answer(admitted, wait=int(value) / 1000)
        return Answer(admitted, held=int(value))

    async def tidy(self, keys: RouteKeys, tenant: str | None) -> int:
        """Forget those of a tenant's open events that have ended, the oldest first; how many there were."""
        name = keys.open(tenant or "")
        now = await self._now()
        flat = await self._connection.command("ZRANGE", name, 0, _PAGE - 1, "WITHSCORES")
        if not flat:
            return 0
        ids = [event_id.decode() for event_id in flat[::2]]
        states = await self._connection.pipeline([("HGET", keys.run(event_id), "status") for event_id in ids])
        ended = [
            event_id
            for event_id, taken, state in zip(ids, flat[1::2], states, strict=True)
            if _is_over(state, now - float(taken))
        ]
        return int(await self._connection.command("ZREM", name, *ended)) if ended else 0

    async def room(self) -> Room | None:
        """How much room the server has; None where it does not say. On a cluster: one of its servers."""
        try:
            text = (await self._connection.command("INFO", "memory")).decode("utf-8", "replace")
        except BrokerUnavailable:
            raise
        except BrokerError:
            return None  # a managed service may not let us look
        told = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        used = _number(told, "used_memory") - _number(told, "mem_not_counted_for_evict")
        return Room(used, _number(told, "maxmemory"))

    async def _now(self) -> float:
        seconds, microseconds = await self._connection.command("TIME")
        return int(seconds) * 1000 + int(microseconds) / 1000


def _is_over(state: bytes | BrokerError | None, age: float) -> bool:
    if isinstance(state, BrokerError):
        raise state
    if state is None:
        return age > _UNRECORDED * 1000
    try:
        return RunStatus(state.decode()).final
    except ValueError:
        return False  # of a newer version


def _bounds(bounds: Bounds) -> tuple[float, int, int]:
    """The interval in ms, the burst and the backlog, as the script takes them."""
    interval = 1000 / bounds.rate if bounds.rate else 0
    burst = bounds.burst or max(1, int(bounds.rate or 1))
    return interval, burst, bounds.backlog or 0


def _number(told: dict[str, str], name: str) -> int:
    text = told.get(name, "").strip()
    return int(text) if text.isdigit() else 0
