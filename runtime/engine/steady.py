"""What the runs of a load leave, told without a collection. Pure."""

from __future__ import annotations

import sys


class SteadyLoad:
    """By how many objects there are more under a load that stays as it is.

    Told by the least that there are in a round, in which as many runs end as are under way. A round whose runs began
    together tells nothing, so the second is the one that those after it are compared with.
    """

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, running: int) -> None:
        self._running = running
        self._rounds = self._ends = 0
        self._least = sys.maxsize
        self.first = 0
        """The least of the second round; 0 before its end."""
        self.risen = 0
        """By how much the least of the last round is above that."""

    def run_ended(self, running: int, grown: int) -> None:
        """A run has ended: so many are under way now, and there are so many objects more than at some time before."""
        if abs(running - self._running) > self._running / 4:
            self._begin(running)
        self._least = min(self._least, grown)
        self._ends += 1
        if self._ends > self._running:
            self._end_round()

    def _end_round(self) -> None:
        if self._rounds == 1:
            self.first = self._least
        elif self._rounds > 1:
            self.risen = self._least - self.first
        self._rounds += 1
        self._ends, self._least = 0, sys.maxsize
