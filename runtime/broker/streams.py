"""Streams as a whole: their groups, how much waits in them, and whether their route is blocked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.broker.connection import Connection
from runtime.broker.keys import RouteKeys
from shared_models.dead_letter import ErrorInfo


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """How a route's stream stands. ``oldest_waiting_ms`` is an age in ms; None where nothing waits."""

    length: int = 0
    waiting: int = 0
    running: int = 0
    delayed: int = 0
    dead: int = 0
    oldest_waiting_ms: int | None = None
    consumers: int = 0
    """Workers with a lease."""


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """Why a route is blocked; times in ms since the epoch."""

    code: str
    reason: str
    component_id: str | None
    since: int
    next_probe: int


class Streams:
    """Commands on whole streams."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def ensure_group(self, keys: RouteKeys) -> None:
        """Create the group at 0, and the stream with it, unless it exists."""
        raise NotImplementedError

    async def counts(self, keys: Sequence[RouteKeys], dead_letters: Sequence[str]) -> list[StreamCounts]:
        """How each route stands, in order; ``dead_letters`` names each one's dead-letter stream."""
        raise NotImplementedError

    async def block(self, keys: RouteKeys, *, error: ErrorInfo, probe_interval: float) -> bool:
        """Block the route; the first probe is due in ``probe_interval`` seconds. True if it was not blocked before."""
        raise NotImplementedError

    async def unblock(self, keys: RouteKeys) -> bool:
        """Let the route's entries run again. True if it was blocked."""
        raise NotImplementedError

    async def blocked(self, keys: Sequence[RouteKeys]) -> list[BlockInfo | None]:
        """Why each route is blocked, in order; None where it is not."""
        raise NotImplementedError

    async def probe_now(self, keys: RouteKeys) -> None:
        """Let the next fetch with ``probe`` have its probe at once. Nothing if the route is not blocked."""
        raise NotImplementedError
