"""When a child that has ended is replaced: at once where it had read, with growing pauses where it fails to start."""

from __future__ import annotations

import random

from runtime.worker.children import Child

STEADY = 30.0
"""Seconds after which a child that ends has not failed at its start."""

MAX_FAILED_STARTS = 5
"""Children that may fail at their start in a row before the worker gives up and lets its platform see it."""

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 5.0


class Restarts:
    """Counts, over the children of one worker."""

    def __init__(self) -> None:
        self.failed_starts = 0
        """Children in a row that ended, or were killed, before they read."""
        self._short_lives = 0

    @property
    def given_up(self) -> bool:
        """Whether no more children should be started."""
        return self.failed_starts >= MAX_FAILED_STARTS

    def reads(self) -> None:
        """A child reads: starts do not fail."""
        self.failed_starts = 0

    def died(self, child: Child, *, lived: float) -> float:
        """A child has died after ``lived`` seconds; seconds until another may take its place.

        Where it had read, others wait for what it held. Where it had not, the next may not be able to either, and must
        not be started in a circle.
        """
        self.failed_starts += child.reading is None and (lived < STEADY or child.killed)
        self._short_lives = 0 if lived >= STEADY or child.lasted else self._short_lives + 1
        pause: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._short_lives, 10))
        return pause * random.uniform(0.5, 1.0)  # noqa: S311  jitter, not a secret
