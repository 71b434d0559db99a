"""The reporter tells the fleet directory what this worker runs, so that any command can show it."""

from __future__ import annotations

import os
import platform
import time

from runtime.broker.client import Broker
from runtime.broker.fleet import RouteEntry, RouteReport, WorkerReport
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
        self.draining = False

    async def tick(self) -> None:
        """One report."""
        routes = [
            RouteEntry(
                route=lane.name,
                stream=lane.keys.stream,
                group=lane.keys.group,
                dead_letters=route.dead_letters,
                results=route.results,
                version=lane.active.route.version if lane.active else route.version,
            )
            for lane in self._lanes
            if not lane.closing and (route := self._book.snapshot.routes.get(lane.name)) is not None
        ]
        await self._broker.fleet.register(routes)
        await self._broker.fleet.report(self._report(), ttl=TTL)

    def _report(self) -> WorkerReport:
        return WorkerReport(
            worker=self._worker,
            host=platform.node(),
            pid=os.getpid(),
            started_at=self._started,
            concurrency=self._concurrency,
            running=self._limiter.used,
            draining=self.draining,
            routes=[_route(lane) for lane in self._lanes if not lane.closing],
        )


def _route(lane: Lane) -> RouteReport:
    return RouteReport(
        route=lane.name,
        version=lane.active.route.version if lane.active else None,
        ready=lane.active is not None,
        needs=list(lane.needs),
        stale=lane.stale,
    )
