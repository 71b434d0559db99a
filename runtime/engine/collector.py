"""CPython's garbage collector and allocator, for what decides when they are asked (see ``heap``). One for a process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any

from runtime.telemetry.resident import give_back, resident

MIDDLE, FAR_OFF = 20, 200
"""Young collections, and those of the middle generation, before the collector would look at the next by itself."""

_WHOLE = 2


class Collector:
    """Its schedule, and what it has done since the last whole collection. Whoever collects tells it."""

    def __init__(self) -> None:
        self._schedule: tuple[int, int, int] | None = None
        self._had = self._moved = self._blocks = self._freed = 0

    def keep(self) -> None:
        """Have another schedule than its own, and count from here."""
        if self._schedule is None:
            self._schedule = gc.get_threshold()
            gc.callbacks.append(self._told)
        self._moved = self._freed = 0

    def let_go(self) -> None:
        """Give it its own schedule back."""
        if self._schedule is not None:
            gc.set_threshold(*self._schedule)
            gc.callbacks.remove(self._told)
            self._schedule = None

    def come_after(self, objects: int) -> None:
        """Have it come by itself after so many objects, and then look at these only."""
        if self._schedule is not None:
            gc.set_threshold(objects, MIDDLE, FAR_OFF)

    def grown(self) -> int:
        """By how many objects there are more than after the last whole collection, at most."""
        return gc.get_count()[0] + self._moved

    def collect(self) -> int:
        """Collect all there is. Gives the blocks of memory that were freed since this was last called.

        A few for each object: not those alone count that refer to themselves, but what they had, too.
        """
        gc.collect()
        freed, self._freed = self._freed, 0
        return freed

    def size(self) -> int:
        """Bytes that the process has."""
        return resident()

    def give_back(self) -> None:
        """Give the machine back what was freed: else it would be filled again before the process is seen to grow."""
        give_back()

    def _told(self, phase: str, info: Mapping[str, Any]) -> None:
        if phase == "start":
            self._had, self._blocks = gc.get_count()[0], sys.getallocatedblocks()
            return
        freed = max(0, self._blocks - sys.getallocatedblocks())
        self._freed += freed
        self._moved = 0 if info["generation"] == _WHOLE else max(0, self._moved + self._had - info["collected"])


COLLECTOR = Collector()
