"""Lines of trouble that lasts or comes back are told a few times a minute, with how many were left out.

Redis away is one fault: the fetch, every run that settles and every periodic loop meet it, again and again. So lines
are counted twice: a place (the route, the step) tells of a fault a few times in a window, and all places together tell
of one fault so often at most. A fault of another kind, or at a place that was quiet, is heard beside it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict

TROUBLE = frozenset({
    "redis.failed", "loop.failed", "group.recreated", "group.not_created", "route.not_unblocked", "entries.adopted",
    "entries.recovered", "entries.repaired", "lease.not_renewed", "outcome.held",
})  # fmt: skip
"""Lines that one fault may bring again and again."""

AT_A_PLACE = 2
"""So many lines of a fault are told for each place in a window."""

OF_A_FAULT = 6
"""So many for all places together."""

WINDOW = 60.0
"""Seconds."""

PLACES = 10_000
"""Places and faults that are remembered; with more, those of which nothing was heard in a window are forgotten."""


class Quiet:
    """A processor that lets through the first lines of each kind of trouble in every window."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[Hashable, deque[float]] = {}
        self._left_out: dict[Hashable, int] = {}

    def __call__(self, logger: Any, method: str, event: EventDict) -> EventDict:
        """The line, or DropEvent."""
        name = event.get("event", "")
        if name not in TROUBLE or method in ("debug", "info"):
            return event
        # What the library words differently from moment to moment is one fault all the same: the code says so.
        fault = event.get("code", name)
        place = (name, fault, event.get("route"), event.get("stream"), event.get("step", event.get("loop")))
        now = self._clock()
        limits = ((place, AT_A_PLACE), (("fault", fault), OF_A_FAULT))
        if any(self._count(key, now) >= limit for key, limit in limits):
            self._left_out[place] = self._left_out.get(place, 0) + 1
            raise structlog.DropEvent
        for key, _ in limits:
            self._told.setdefault(key, deque()).append(now)
        if len(self._told) > PLACES:
            self._forget(now)
        if left_out := self._left_out.pop(place, 0):
            event["left_out"] = left_out
        return event

    def _count(self, key: Hashable, now: float) -> int:
        told = self._told.get(key, deque())
        while told and told[0] + WINDOW <= now:
            told.popleft()
        return len(told)

    def _forget(self, now: float) -> None:
        for key in [key for key in self._told if not self._count(key, now)]:
            del self._told[key]
            self._left_out.pop(key, None)
