"""Slots: how many runs this process may have at once, over all routes and per route."""

from __future__ import annotations

from collections import Counter


class Limiter:
    """Counts running deliveries against the process's concurrency and each route's own."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._used: Counter[str] = Counter()
        self.ended = 0
        """Deliveries that have ended."""
        self.crashed = 0
        """Deliveries in a row that ended with an error of ours."""
        self.stuck = 0
        """Slots of deliveries that have ended, whose runs have not: they did not let themselves be cancelled."""

    @property
    def used(self) -> int:
        """Slots in use."""
        return self._used.total()

    @property
    def free(self) -> int:
        """Slots left in the process."""
        return self._total - self.used

    @property
    def jammed(self) -> bool:
        """Whether half of the slots or more are stuck, so that the process had better be replaced."""
        return self.stuck > 0 and 2 * self.stuck >= self._total

    def free_for(self, route: str, limit: int | None) -> int:
        """Slots that ``route`` may take now, given its own ``limit``."""
        own = self._total if limit is None else limit - self._used[route]
        return max(0, min(self.free, own))

    def take(self, route: str) -> None:
        """One slot for ``route``; the caller has looked before."""
        self._used[route] += 1

    def give_back(self, route: str) -> None:
        """The slot of a delivery that has ended."""
        self.ended += 1
        self._used[route] -= 1
        if self._used[route] <= 0:
            del self._used[route]
