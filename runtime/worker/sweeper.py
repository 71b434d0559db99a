"""The sweeper hands on the entries of workers whose lease has ended, and buries them. Liveness decides, never age."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypedDict

import structlog

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.broker.recovery import SWEEP_PAGE
from runtime.errors import GroupMissing
from runtime.settings import WorkerSettings
from runtime.worker.lanes import Lane, Lanes
from runtime.worker.loop import PeriodicLoop
from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")

Condemned = deque[tuple[RouteKeys, Sequence[str]]]
"""Entries to be dead-lettered undecoded, by their route's keys."""


class _Times(TypedDict):
    lease: float
    gap: float
    idle: float


class Sweeper(PeriodicLoop):
    """Sweeps every lane's group."""

    name = "sweeper"

    def __init__(
        self,
        broker: Broker,
        lanes: Lanes,
        settings: WorkerSettings,
        *,
        condemn: Callable[[Lane, Sequence[str]], Awaitable[None]],
        condemned: Condemned,
        found: Callable[[], None],
    ) -> None:
        super().__init__(settings.sweep_interval)
        self._condemn = condemn
        self._condemned = condemned
        self._found = found
        self._broker = broker
        self._lanes = lanes
        self._times = _Times(
            lease=settings.lease,
            # Longer than a round takes, else a lone sweeper would see a gap each time and never move anything.
            gap=max(settings.lease / 3, 3 * settings.sweep_interval),
            idle=settings.reclaim_idle,
        )

    async def tick(self) -> None:
        """One look over all lanes, and a sweep where one is needed, again at once while there is more than a page."""
        problem: HeadraceError | None = None
        while self._condemned:
            keys, entries = self._condemned[0]
            for lane in self._lanes:
                if lane.keys == keys:
                    await self._condemn(lane, entries)
            self._condemned.popleft()
        lanes = [lane for lane in self._lanes if lane.listening]
        found = await self._broker.recovery.patrol([lane.keys for lane in lanes], **self._times)
        for lane, needed in zip(lanes, found, strict=True):
            try:
                if isinstance(needed, HeadraceError):
                    raise needed
                if needed:
                    await self._sweep(lane)
            except HeadraceError as error:
                problem = error  # of a cluster's servers one may be away: the other lanes need their sweep
        if problem is not None:
            raise problem

    async def _sweep(self, lane: Lane) -> None:
        moved = removed = 0
        while True:
            try:
                swept = await self._broker.recovery.sweep(lane.keys, **self._times)
            except GroupMissing:
                break  # the consumer re-creates it
            moved, removed = moved + swept.moved, removed + swept.removed
            if swept.poison:
                log.error("entries.condemned", route=lane.name, entries=list(swept.poison))
                await self._condemn(lane, swept.poison)
            if swept.moved < SWEEP_PAGE:
                break
        if moved or removed:
            lane.hungry = True
            self._found()
            log.warning("entries.recovered", route=lane.name, entries=moved, consumers_removed=removed)
