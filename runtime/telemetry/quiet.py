"""Lines of trouble that lasts or comes back are told a few times a minute, with how many were left out.

Redis away is one fault: the fetch, every run that settles and every periodic loop meet it, again and again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict

TROUBLE = frozenset({
    "redis.failed", "loop.failed", "group.recreated", "group.not_created", "route.not_unblocked", "entries.adopted",
    "entries.recovered", "entries.repaired", "lease.not_renewed",
})  # fmt: skip
"""Lines that one fault may bring again and again."""

LINES = 3
"""So many of each are told in a window."""

WINDOW = 60.0
"""Seconds."""


class Quiet:
    """A processor that lets through the first lines of each kind of trouble in every window."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, deque[float]] = {}
        self._left_out: dict[str, int] = {}

    def __call__(self, logger: Any, method: str, event: EventDict) -> EventDict:
        """The line, or DropEvent."""
        name = event.get("event", "")
        if name not in TROUBLE or method in ("debug", "info"):
            return event
        now, told = self._clock(), self._told.setdefault(name, deque(maxlen=LINES))
        if len(told) == LINES and now < told[0] + WINDOW:
            self._left_out[name] = self._left_out.get(name, 0) + 1
            raise structlog.DropEvent
        told.append(now)
        if left_out := self._left_out.pop(name, 0):
            event["left_out"] = left_out
        return event
