"""The fleet: which workers there are, and where each route reads and writes. For display and for commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.broker.connection import Connection


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker says of itself; times in ms since the epoch. ``seen_at`` is filled in by ``workers``."""

    name: str
    host: str = ""
    pid: int = 0
    started_at: int = 0
    state: str = "ready"
    concurrency: int = 0
    running: int = 0
    routes: tuple[str, ...] = ()
    version: str = ""
    seen_at: int = 0


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """Where a route reads and writes. ``reason`` says why it is not ready."""

    route: str
    stream: str
    group: str
    dead_letters: str
    results: str
    version: str = ""
    ready: bool = True
    reason: str = ""


class Fleet:
    """Registers workers and routes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def report(self, report: WorkerReport, *, ttl: float) -> None:
        """Tell that this worker is here; forgotten ``ttl`` seconds from now."""
        raise NotImplementedError

    async def workers(self) -> list[WorkerReport]:
        """The workers that reported lately, by name."""
        raise NotImplementedError

    async def withdraw(self, worker: str) -> None:
        """Forget a worker that ends."""
        raise NotImplementedError

    async def register(self, routes: Sequence[RouteEntry]) -> None:
        """Tell where these routes read and write."""
        raise NotImplementedError

    async def routes(self) -> dict[str, RouteEntry]:
        """Every registered route by name."""
        raise NotImplementedError

    async def forget(self, route: str) -> None:
        """Forget a route; its streams stay."""
        raise NotImplementedError
