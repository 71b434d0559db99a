"""Looks, while runs are under way, whether somebody wants to end one of them or follows it."""

from __future__ import annotations

import structlog

from runtime.broker.client import Broker
from runtime.worker.flights import Abort, Flights
from runtime.worker.loop import PeriodicLoop
from runtime.worker.progress import SHORT

log = structlog.get_logger("headrace.worker")

LOOK = 0.4
"""Seconds between two looks: a cancelled run hears of it within a second."""

PAGE = 500
"""Runs asked for in one round trip."""


class Lookout(PeriodicLoop):
    """Asks for the runs that take longer than a moment, all in one round trip; nothing where there are none."""

    name = "lookout"

    def __init__(self, broker: Broker, flights: Flights) -> None:
        super().__init__(LOOK)
        self._broker = broker
        self._flights = flights

    async def tick(self) -> None:
        """Look once, when there is anything to look for."""
        await self._flights.some()
        under_way = [
            (flight, attempt)
            for flight in self._flights
            if (attempt := flight.attempt) is not None and flight.abort is None and attempt.progress.age >= SHORT
        ]
        for start in range(0, len(under_way), PAGE):
            page = under_way[start : start + PAGE]
            claims = [attempt.claim for _, attempt in page]
            asked = await self._broker.feeds.asked([(c.keys, c.key, c.event_id, c.token) for c in claims])
            for (flight, attempt), one in zip(page, asked, strict=True):
                if one.followed:
                    attempt.progress.want()
                if one.cancelled and flight.attempt is attempt:
                    log.info("run.cancelling", route=flight.lane.name, event_id=attempt.claim.event_id)
                    flight.end(Abort.CANCELLED)
