"""The fleet: which workers there are, and where each route reads and writes. For display and for commands."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from runtime.broker.connection import Connection
from runtime.broker.keys import FLEET_ROUTES, FLEET_SEEN, FLEET_WORKERS
from runtime.errors import BrokerError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker says of itself; times in ms since the epoch. ``seen_at`` is when it last did; filled in here.

    ``routes`` names those that it runs.
    """

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
    """Where a route reads and writes. ``reason`` says why it is not ready.

    ``ingress`` is what a gateway needs of the route's spec, as JSON values (``registry.snapshot.ingress_of``).
    """

    route: str
    stream: str
    group: str
    dead_letters: str
    results: str
    version: str = ""
    ready: bool = True
    reason: str = ""
    internal: bool = False
    """No flow: it delivers another route's callbacks, and takes events from workers only."""
    ingress: dict[str, Any] = field(default_factory=dict, hash=False)


# A fleet is of several versions during a deploy: what a newer one adds is ignored, what cannot be read is left out.
_WORKER = TypeAdapter(WorkerReport)
_ROUTE = TypeAdapter(RouteEntry)


class Fleet:
    """The directory of workers and routes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def report(self, report: WorkerReport, *, ttl: float) -> None:
        """Tell that this worker is here; forgotten ``ttl`` seconds from now."""
        now = await self._now()
        await self._all(
            ("HSET", FLEET_WORKERS, report.name, _WORKER.dump_json(replace(report, seen_at=now))),
            ("ZADD", FLEET_SEEN, now + int(ttl * 1000), report.name),
        )

    async def workers(self) -> list[WorkerReport]:
        """The workers that reported lately, by name."""
        await self.prune()
        reports = _readable(_WORKER, await self._connection.command("HGETALL", FLEET_WORKERS))
        return sorted(reports, key=lambda report: report.name)

    async def prune(self) -> None:
        """Forget the workers that have not reported for too long: they ended without a word."""
        gone = await self._connection.command("ZRANGEBYSCORE", FLEET_SEEN, "-inf", await self._now())
        if gone:
            await self._all(("HDEL", FLEET_WORKERS, *gone), ("ZREM", FLEET_SEEN, *gone))

    async def withdraw(self, worker: str) -> None:
        """Forget a worker that ends."""
        await self._all(("HDEL", FLEET_WORKERS, worker), ("ZREM", FLEET_SEEN, worker))

    async def register(self, routes: Sequence[RouteEntry]) -> None:
        """Tell where these routes read and write."""
        if routes:
            pairs = [part for entry in routes for part in (entry.route, _ROUTE.dump_json(entry))]
            await self._connection.command("HSET", FLEET_ROUTES, *pairs)

    async def routes(self) -> dict[str, RouteEntry]:
        """Every registered route by name."""
        entries = _readable(_ROUTE, await self._connection.command("HGETALL", FLEET_ROUTES))
        return {entry.route: entry for entry in sorted(entries, key=lambda entry: entry.route)}

    async def forget(self, route: str) -> None:
        """Forget a route; its streams stay."""
        await self._connection.command("HDEL", FLEET_ROUTES, route)

    async def _all(self, *commands: tuple[str | bytes | int, ...]) -> None:
        for reply in await self._connection.pipeline(commands):
            if isinstance(reply, BrokerError):
                raise reply

    async def _now(self) -> int:
        seconds, _ = await self._connection.command("TIME")
        return int(seconds) * 1000


def _readable(kind: TypeAdapter[T], flat: Sequence[bytes]) -> list[T]:
    found = []
    for value in flat[1::2]:
        with suppress(ValidationError):
            found.append(kind.validate_json(value))
    return found
