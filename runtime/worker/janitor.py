"""The janitor repairs what operators and evictions broke, and trims run lists and results that nobody reads."""

from __future__ import annotations

import structlog

from runtime.broker.client import Broker
from runtime.errors import GroupMissing
from runtime.settings import Settings
from runtime.worker.lanes import Lane, Lanes
from runtime.worker.loop import PeriodicLoop
from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")


class Janitor(PeriodicLoop):
    """Audits every lane once a minute."""

    name = "janitor"

    def __init__(self, broker: Broker, lanes: Lanes, settings: Settings) -> None:
        super().__init__(settings.worker.audit_interval)
        self._broker = broker
        self._lanes = lanes
        self._life = settings.retention.results

    async def tick(self) -> None:
        """One round over the lanes."""
        problem: HeadraceError | None = None
        for lane in self._lanes:
            if lane.listening:
                try:
                    await self._audit(lane)
                except HeadraceError as error:
                    problem = error  # of a cluster's servers one may be away
        if problem is not None:
            raise problem

    async def _audit(self, lane: Lane) -> None:
        try:
            repaired = await self._broker.recovery.audit(lane.keys)
        except GroupMissing:
            return  # the consumer re-creates it
        await self._broker.runs.trim(lane.keys)
        if lane.active is not None and (results := lane.active.route.results) not in lane.read:
            await self._broker.streams.thin(results, life=self._life)
        if repaired:
            lane.hungry = True
            log.warning("entries.repaired", route=lane.name, entries=repaired)
