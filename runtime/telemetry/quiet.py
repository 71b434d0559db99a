"""Lines of trouble that lasts or comes back are told a few times a minute, with how many were left out.

Redis away is one fault: the fetch, every run that settles and every periodic loop meet it, again and again, in every
process of a worker. So lines are counted twice: a place (the route, the step) tells of a fault a few times in a window,
and all places together tell of one fault so often at most. A fault of another kind, or at a place that was quiet, is
heard beside it; and what tells of an event that somebody must look after is counted at its place only.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict

TROUBLE = frozenset({
    "redis.failed", "loop.failed", "group.recreated", "group.not_created", "route.not_unblocked", "entries.adopted",
    "entries.recovered", "entries.repaired", "lease.not_renewed", "outcome.held", "event.refused",
    "delivery.crashed", "event.postponed", "archive.failed",
})  # fmt: skip
"""Lines that one fault may bring again and again."""

OF_EVENTS = frozenset({"outcome.held", "event.refused"})
"""Those among them by which one hears of an event: no other place's lines take the place of these."""

AT_A_PLACE = 2
"""So many lines of a fault are told for each place in a window."""

OF_A_FAULT = 6
"""So many for all places together."""

WINDOW = 60.0
"""Seconds."""


class Quiet:
    """A processor that lets through the first lines of each kind of trouble in every window.

    Processes that are forked after it was made count together.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tally = _Tally()
        self._left_out: dict[tuple[Any, ...], int] = {}

    def __call__(self, logger: Any, method: str, event: EventDict) -> EventDict:
        """The line, or DropEvent."""
        name = event.get("event", "")
        if name not in TROUBLE or method in ("debug", "info"):
            return event
        # What the library words differently from moment to moment is one fault all the same: the code says so. But much
        # has the same code: what another line tells of under it is another fault.
        fault = (name, event.get("code"))
        place = (*fault, event.get("route"), event.get("stream"), event.get("step", event.get("loop")))
        limits = {repr(place): AT_A_PLACE}
        if name not in OF_EVENTS:
            limits[repr(fault)] = OF_A_FAULT
        if not self._tally.takes(limits, self._clock()):
            self._left_out[place] = self._left_out.get(place, 0) + 1
            raise structlog.DropEvent
        if left_out := self._left_out.pop(place, 0):
            event["left_out"] = left_out
        return event


_SLOTS = 4096
_SLOT = struct.Struct(f"<Q{OF_A_FAULT}d")
_PROBES = 8


class _Tally:
    """When the last lines of each key were told, in memory that a fork shares. Without a lock.

    Two processes at one moment may tell a line too many, and where the table is full two keys count as one.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SLOTS * _SLOT.size)

    def takes(self, limits: dict[str, int], now: float) -> bool:
        """Count a line for all of these keys, if each has had fewer than its limit in the window; else for none."""
        now += 1.0  # so that no time is 0, which is an empty place
        slots = [(self._slot(key, now), limit) for key, limit in limits.items()]
        if any(_recent(times, now) >= limit for (_, _, times), limit in slots):
            return False
        for (at, key, times), _ in slots:
            _SLOT.pack_into(self._memory, at, key, *sorted((*times[1:], now)))
        return True

    def _slot(self, name: str, now: float) -> tuple[int, int, tuple[float, ...]]:
        """Where a key is or may be, its number, and its times, the oldest first."""
        key = int.from_bytes(hashlib.blake2b(name.encode(errors="replace"), digest_size=8).digest(), "little") or 1
        free: int | None = None
        for n in range(_PROBES):
            at = (key + n) % _SLOTS * _SLOT.size
            found, *times = _SLOT.unpack_from(self._memory, at)
            if found == key:
                return at, key, tuple(times)
            if free is None and not _recent(tuple(times), now):
                free = at
        if free is not None:
            return free, key, (0.0,) * OF_A_FAULT
        at = key % _SLOTS * _SLOT.size
        return at, key, tuple(_SLOT.unpack_from(self._memory, at)[1:])


def _recent(times: tuple[float, ...], now: float) -> int:
    return sum(told > 0 and told + WINDOW > now for told in times)
