"""Run records and their feeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from runtime.broker.connection import Connection
from runtime.broker.keys import RouteKeys
from runtime.settings import RetentionSettings
from shared_models.result import RunEvent, RunEventType, RunRecord, RunStatus


class Cancelled(IntEnum):
    """What cancel says. ASKED: it runs; it is cancelled when its attempt fails, not when it completes."""

    UNKNOWN = 0
    CANCELLED = 1
    ASKED = 2
    ENDED = 3


class Runs:
    """Reads run records, and adds to feeds."""

    def __init__(self, connection: Connection, retention: RetentionSettings) -> None:
        self._connection = connection
        self._retention = retention

    async def get(self, keys: RouteKeys, event_id: str) -> RunRecord | None:
        """The record of an event's run on this route."""
        raise NotImplementedError

    async def find(self, keys: Sequence[RouteKeys], event_id: str) -> RunRecord | None:
        """The record of an event's run on any of these routes."""
        raise NotImplementedError

    async def feed(
        self, keys: RouteKeys, event_id: str, *, after: str = "0-0", block: float | None = None, count: int = 100
    ) -> list[RunEvent]:
        """Lines of a run's feed after the id ``after``; waits up to ``block`` seconds for the first."""
        raise NotImplementedError

    async def append(self, keys: RouteKeys, event_id: str, event_type: RunEventType, data: Mapping[str, Any]) -> None:
        """Add a line to a run's feed."""
        raise NotImplementedError

    async def append_all(
        self, keys: RouteKeys, event_id: str, events: Sequence[tuple[RunEventType, Mapping[str, Any]]]
    ) -> None:
        """Add lines to a run's feed in one round trip."""
        raise NotImplementedError

    async def cancel(self, keys: RouteKeys, event_id: str, *, ttl: float = 86400.0) -> Cancelled:
        """Cancel an event that has not ended. ``ttl``: seconds its key stays taken."""
        raise NotImplementedError

    async def trim(self, keys: RouteKeys) -> None:
        """Forget the oldest of the route's list of runs (the records themselves expire)."""
        raise NotImplementedError

    async def list(self, keys: RouteKeys, *, count: int = 50, status: RunStatus | None = None) -> list[RunRecord]:
        """The newest runs, newest first."""
        raise NotImplementedError
