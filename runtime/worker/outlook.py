"""The outlook: what the supervisor knows of its worker's health, for the probes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.errors import BrokerError, BrokerUnavailable
from runtime.settings import WorkerSettings
from runtime.worker.board import boot_time
from runtime.worker.children import Children
from runtime.worker.probes import ChildView, WorkerView
from runtime.worker.renewals import Renewals
from shared_models.errors import HeadraceError

BACKLOG_LOOK = 5.0
"""Seconds between looks at what waits."""


class Outlook:
    """Notes for how long events have waited on routes that are not blocked, and since when too few children read."""

    def __init__(self, broker: Broker, children: Children, renewals: Renewals, settings: WorkerSettings) -> None:
        self._broker = broker
        self._children = children
        self._renewals = renewals
        self._settings = settings
        self._started = self._enough_children = boot_time()
        self._backlog_since: float | None = None

    def begins(self) -> None:
        """From now on there should be children."""
        self._enough_children = boot_time()

    async def run(self) -> None:
        """Look every few seconds."""
        while True:
            await asyncio.sleep(BACKLOG_LOOK)
            reading = [child for child in self._children if child.reading is not None and child.general]
            if len(reading) >= self._settings.processes:
                self._enough_children = boot_time()
            try:
                waits = await self._waits(list({key: None for child in reading for key in child.keys}))
            except HeadraceError:
                continue  # Redis is away: nothing is known, and nothing is to blame
            if not waits:
                self._backlog_since = None
            elif self._backlog_since is None:
                self._backlog_since = boot_time()

    async def _waits(self, keys: Sequence[RouteKeys]) -> bool:
        if not keys:
            return False
        seen = await self._broker.reader.glance([(key, "") for key in keys])
        for one in seen:
            if isinstance(one, BrokerUnavailable):
                raise one
        self._renewals.answered = boot_time()
        keys = [key for key, one in zip(keys, seen, strict=True) if one == 0 or isinstance(one, BrokerError)]
        if not keys:
            return False
        known = await self._broker.fleet.routes()
        ready = {(entry.stream, entry.group) for entry in known.values() if entry.ready}
        keys = [key for key in keys if (key.stream, key.group) in ready]
        counts = await self._broker.streams.counts(keys, [key.stream for key in keys])
        blocked = await self._broker.streams.blocked(keys)
        pairs = zip(counts, blocked, strict=True)
        return any(count.oldest_waiting_ms is not None and block is None for count, block in pairs)

    def view(self, *, loaded: bool, draining: bool) -> WorkerView:
        """The worker as a probe sees it."""
        now = boot_time()
        return WorkerView(
            started=now - self._started,
            loaded=loaded,
            draining=draining,
            processes=self._settings.processes,
            concurrency=self._settings.concurrency,
            hang_timeout=self._settings.hang_timeout,
            redis_age=now - self._renewals.answered,
            short_of_children=now - self._enough_children,
            backlog=0.0 if self._backlog_since is None else now - self._backlog_since,
            children=tuple(
                ChildView(child.name, child.reading is not None, *child.slot.ages, child.slot.used)
                for child in self._children
                if child.general
            ),
        )
