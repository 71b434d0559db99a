"""The reporter tells the fleet directory what this worker runs, so that any command can show it."""

from __future__ import annotations

import os
import platform
import time

from runtime.broker.client import Broker
from runtime.broker.fleet import RouteEntry, WorkerReport
from runtime.registry.snapshot import Route, ingress_of
from runtime.worker.lanes import Lane, Lanes
from runtime.worker.limiter import Limiter
from runtime.worker.loop import PeriodicLoop
from runtime.worker.route_book import RouteBook

INTERVAL = 5.0
"""Seconds between reports; a change is reported at once."""

TTL = 30.0
"""Seconds that a report counts."""


class Reporter(PeriodicLoop):
    """Reports one worker identity."""

    name = "reporter"

    def __init__(
        self,
        broker: Broker,
        lanes: Lanes,
        book: RouteBook,
        limiter: Limiter,
        *,
        worker: str,
        concurrency: int,
    ) -> None:
        super().__init__(INTERVAL)
        self._broker = broker
        self._lanes = lanes
        self._book = book
        self._limiter = limiter
        self._worker = worker
        self._concurrency = concurrency
        self._started = time.time_ns() // 1_000_000
        self._entries: dict[str, tuple[tuple[object, ...], RouteEntry]] = {}
        self.draining = False

    async def tick(self) -> None:
        """One report."""
        lanes = [lane for lane in self._lanes if not lane.closing]
        routes = self._book.snapshot.routes
        self._entries = {lane.name: self._entry(lane, routes[lane.name]) for lane in lanes if lane.name in routes}
        await self._broker.fleet.register([entry for _, entry in self._entries.values()])
        await self._broker.fleet.report(self._report(lanes), ttl=TTL)

    def _entry(self, lane: Lane, route: Route) -> tuple[tuple[object, ...], RouteEntry]:
        """What is told of a lane, made anew where what it is made of has changed: it is told every few seconds."""
        made_of = (route, lane.keys, lane.active, lane.refused, lane.stale, lane.needs)
        before = self._entries.get(lane.name)
        if before is not None and all(a is b for a, b in zip(before[0], made_of, strict=True)):
            return before
        return made_of, _entry(lane, route)

    def _report(self, lanes: list[Lane]) -> WorkerReport:
        return WorkerReport(
            name=self._worker,
            host=platform.node(),
            pid=os.getpid(),
            started_at=self._started,
            state="draining" if self.draining else "ready",
            concurrency=self._concurrency,
            running=self._limiter.used,
            routes=tuple(sorted(lane.name for lane in lanes if lane.active)),
        )


def _entry(lane: Lane, route: Route) -> RouteEntry:
    return RouteEntry(
        route=lane.name,
        stream=lane.keys.stream,
        group=lane.keys.group,
        dead_letters=route.dead_letters,
        results=route.results,
        version=lane.active.route.version if lane.active else route.version,
        ready=lane.active is not None and not lane.refused,
        reason=lane.stale or "; ".join(lane.needs),
        internal=route.callbacks_of is not None,
        ingress={} if route.callbacks_of else ingress_of(route.spec),
    )
