"""When the garbage of runs is collected.

A collection looks at all that lives, and stops the loop, and every run on it, for as long: 20 ms for 30,000 objects;
an agent has 2,300. Most of what a run leaves is freed when it ends (see ``remains``). So there is little to collect,
and it can wait: for a moment with nothing under way, or with as little as it gets, and at the latest until it is much.
What is left when no more runs come is collected a second later.
The collector's own schedule is kept so far off that it comes only where runs make much and do not end.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from contextvars import Context
from typing import Protocol

MUCH = 20_000
"""Objects of garbage, some 2 MB, after which there is a collection: they add 10 to 20 ms to what it takes."""

FIRST = 100
"""Runs until the first collection, which tells how much a run leaves."""

MOST = 1000
"""Runs after which there is one, however little they leave."""

WHOLE = 10
"""Runs that have failed, or of which something lives on, after which there is one: they leave all that they had."""

QUIET = 8
"""In a moment without a run, a collection is had for this part of the garbage: it is short, and nobody waits."""

SHARE = 0.5
"""So many runs have ended for each that is under way: what lives is looked at too, and nothing is found there."""

REST = 4
"""A collection is followed by so many times its own duration without one: where much lives, each is long."""

LONGEST = 2.0
"""Seconds. Longer, the garbage of busy seconds would make the next one longer still."""

IDLE = 1.0
"""Seconds after the last run in which nothing is under way, after which there is one."""

LITTLE = 2_000
"""Objects, for which alone there is none then."""

EACH = 2_500
"""Objects that a run may have, and its share of what is kept from run to run."""

MIDDLE, FAR_OFF = 20, 200
"""Young collections, and those of the middle generation, before the collector would look at the next by itself."""


def _grown() -> int:
    """By how many objects there are more than after the last whole collection, at most.

    What a young collection moves on is counted no more: it is as much as it took to have one.
    """
    young, had, middle = gc.get_count()
    return young + (had + middle * (MIDDLE + 2)) * (gc.get_threshold()[0] + 1)


_keepers: set[Heap] = set()
"""Those of the process that keep the collector's schedule, one for each engine."""

_schedules: list[tuple[int, int, int]] = []
"""The collector's own, while one of them does."""


class _Timer(Protocol):
    def cancel(self) -> None: ...


def _later(seconds: float, function: Callable[[], None]) -> _Timer:
    # In a context of its own: the one here is a run's, and has all that it had.
    return asyncio.get_running_loop().call_later(seconds, function, context=Context())


class Heap:
    """Collects after runs. Belongs to the event loop's thread.

    ``collect`` tells how many objects it has found, ``grown`` how many more there are since, ``later`` calls a function
    after so many seconds.
    """

    def __init__(
        self,
        collect: Callable[[], int] = gc.collect,
        clock: Callable[[], float] = time.perf_counter,
        grown: Callable[[], int] = _grown,
        later: Callable[[float, Callable[[], None]], _Timer] = _later,
    ) -> None:
        self._collect = collect
        self._clock = clock
        self._grown = grown
        self._later = later
        self._timer: _Timer | None = None
        self._over = False
        self._running = 0
        self._ended = 0
        self._whole = 0
        self._least = 0
        self._every = FIRST
        self._rest_until = 0.0

    def keep(self) -> None:
        """Give the collector a schedule for runs: a young collection where they have more than they should."""
        if not _keepers:
            _schedules.append(gc.get_threshold())
        _keepers.add(self)
        self._over = False
        self._timer = None  # one of a loop that is gone would never come
        self._set_young()

    def let_go(self) -> None:
        """Give the collector its own schedule back, unless another engine of the process keeps it. Nothing follows."""
        self._over = True
        if self in _keepers:
            _keepers.remove(self)
            if _keepers:
                self._set_young()
            else:
                gc.set_threshold(*_schedules.pop())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def run_began(self) -> None:
        """A run is under way."""
        self._running += 1
        self._set_young()

    def run_ended(self) -> None:
        """Collect, if it is time. Called on the loop, after a run."""
        self._running -= 1
        self._set_young()
        self._ended += 1
        if self._is_due() and self._clock() >= self._rest_until:
            self._have()
        self._have_when_idle()

    def left_whole(self) -> None:
        """A run that ends, or has just ended, leaves its graph as it was."""
        self._whole += 1
        self._have_when_idle()

    def _have_when_idle(self) -> None:
        if self._timer is None and not self._over and self._is_idle():
            self._timer = self._later(IDLE, self._at_rest)

    def _at_rest(self) -> None:
        self._timer = None
        if self._is_idle():
            self._have()

    def _is_idle(self) -> bool:
        """Whether nothing is under way, and something is left."""
        return self._under_way() == 0 and (self._whole > 0 or self._grown() > LITTLE)

    def _under_way(self) -> int:
        """Runs of all engines of the process: a collection stops each."""
        return self._running + sum(each._running for each in _keepers if each is not self)

    def _set_young(self) -> None:
        if _keepers:
            running = sum(each._running for each in _keepers)
            gc.set_threshold(EACH * (running + 1) + 2 * MUCH, MIDDLE, FAR_OFF)

    def _is_due(self) -> bool:
        """Whether a collection is to be had now.

        The first half of a period tells how little is under way at times; in the second, such a moment is taken.
        """
        part = max(self._ended / self._every, self._whole / WHOLE)
        running = self._under_way()
        if self._grown() > EACH * (running + 1) + MUCH:
            return True
        if running == 0:
            return part >= 1 / QUIET
        if part <= 1 / 2:
            self._least = running if self._ended == 1 else min(self._least, running)
            return False
        return self._ended >= SHARE * running and (running <= self._least or part >= 1)

    def _have(self) -> None:
        began = self._clock()
        found = self._collect()
        ended = self._clock()
        self._rest_until = ended + min(REST * (ended - began), LONGEST)
        self._every = max(1, min(MOST, self._ended * MUCH // max(found, 1)))
        self._ended = self._whole = 0
