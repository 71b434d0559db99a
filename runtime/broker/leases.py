"""Leases: a worker's proof of life, route by route."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from runtime.broker.connection import Connection
from runtime.broker.keys import RouteKeys


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
        """Make the worker's lease on each route end ``ttl`` seconds from now, in one round trip."""
        raise NotImplementedError

    async def unstarted(self, keys: RouteKeys, *, worker: str, ids: Sequence[str]) -> int:
        """Give back entries that were read and never begun; how many were still this worker's."""
        raise NotImplementedError

    async def leave(self, keys: RouteKeys, *, worker: str) -> None:
        """Give back whatever is still this worker's on the route, then the consumer and the lease."""
        raise NotImplementedError

    async def excuse(self, keys: Sequence[RouteKeys], *, worker: str) -> None:
        """Say that the worker's death, should it come, is nobody's fault (it was asked to stop)."""
        raise NotImplementedError
