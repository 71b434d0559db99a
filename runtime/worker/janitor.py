"""The janitor repairs what operators and evictions broke, trims lists and results, forgets workers that are gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import structlog

from runtime.archive.archive import Archive
from runtime.broker.client import Broker
from runtime.errors import BrokerError, GroupMissing
from runtime.settings import Settings
from runtime.worker.lanes import Lane, Lanes
from runtime.worker.loop import PeriodicLoop

log = structlog.get_logger("headrace.worker")


TELL_AGAIN = 3600.0
"""Seconds until a group that nothing reads is told of again."""

EXPIRE = 3600.0
"""Seconds between two rounds over the archive."""


class Janitor(PeriodicLoop):
    """Audits every lane once a minute."""

    name = "janitor"

    def __init__(self, broker: Broker, lanes: Lanes, settings: Settings, archive: Archive | None = None) -> None:
        super().__init__(settings.worker.audit_interval)
        self._broker = broker
        self._lanes = lanes
        self._life = settings.retention.results
        self._archive = archive
        self._expired = float("-inf")
        self._told: dict[tuple[str, str], float] = {}

    async def tick(self) -> None:
        """One round over the lanes, and now and then over the archive."""
        lanes = [lane for lane in self._lanes if lane.listening]
        problem = await self._audit(lanes)
        problem = await self._thin(lanes) or problem
        if problem is not None:
            raise problem
        await self._tell_left_behind()
        await self._broker.fleet.prune()
        await self._expire()

    async def _expire(self) -> None:
        if self._archive is None or time.monotonic() < self._expired + EXPIRE:
            return
        self._expired = time.monotonic()
        if gone := await asyncio.to_thread(self._archive.expire):
            log.info("archive.expired", objects=gone)

    async def _tell_left_behind(self) -> None:
        """Entries are deleted when every group has settled them: one that nobody reads keeps all of them for ever."""
        lanes = {lane.keys.stream: lane for lane in self._lanes if lane.listening}
        groups = await self._broker.streams.groups(list(lanes))
        if all(len(found) < 2 for found in groups.values()):
            return
        read = {(entry.stream, entry.group) for entry in (await self._broker.fleet.routes()).values()}
        read |= {(lane.keys.stream, lane.keys.group) for lane in self._lanes}
        now = time.monotonic()
        for stream, found in groups.items():
            for group in found:
                which = (stream, group.name)
                if which in read or not group.entries or now < self._told.get(which, -TELL_AGAIN) + TELL_AGAIN:
                    continue
                self._told[which] = now
                log.warning(
                    "group.left_behind",
                    stream=stream,
                    group=group.name,
                    entries=group.entries,
                    hint="no route reads with it; "
                    f"if nothing else needs it: headrace flows retire {stream} {group.name}",
                )

    async def _audit(self, lanes: Sequence[Lane]) -> BrokerError | None:
        """Repair every lane, whatever becomes of another: of a cluster's servers one may be away. The last error."""
        problem = None
        found = await self._broker.recovery.audit_on([lane.keys for lane in lanes])
        for lane, repaired in zip(lanes, found, strict=True):
            if isinstance(repaired, GroupMissing):
                continue  # the consumer re-creates it
            if isinstance(repaired, BrokerError):
                problem = repaired
            elif repaired:
                lane.hungry = True
                log.warning("entries.repaired", route=lane.name, entries=repaired)
        await self._broker.runs.trim([lane.keys for lane in lanes])
        return problem

    async def _thin(self, lanes: Sequence[Lane]) -> BrokerError | None:
        """Delete results that nobody reads and that have had their time. The last error."""
        results = dict.fromkeys(
            name for lane in lanes if lane.active and (name := lane.active.route.results) not in lane.read
        )
        thinned = await self._broker.streams.thin(list(results), life=self._life)
        return next((one for one in thinned if isinstance(one, BrokerError)), None)
