"""When the garbage of runs is collected.

A collection looks at all that lives, and stops the loop, and every run on it, for as long: 20 ms for 30,000 objects;
an agent has 2,000 to 4,000. Most of what a run leaves is freed when it ends (see ``remains``). So there is little to
collect, and it can wait: for a moment with nothing under way, or with as little as it gets. Under a load, where it
would stop many for long, it is had only for what there is to show for it: runs that are known to leave much, or that
leave all that they had, more objects than they can have, a process that grows.
What is left when no more runs come is collected a second later.
The collector's own schedule is kept so far off that it comes only where runs make much and do not end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from typing import Protocol

from runtime.engine.collector import COLLECTOR, Collector
from runtime.engine.steady import SteadyLoad

MUCH = 20_000
"""Objects of garbage, or blocks of memory that they have, some 2 MB, after which there is a collection: 10 ms more."""

FIRST = 100
"""Runs until the first collection, which tells how much a run leaves."""

MOST = 1000
"""Runs after which there is one, however little they leave, if it is short."""

SHORT = 0.025
"""Seconds that one may take which nothing asks for but the number of runs."""

TAKES = 0.7e-6
"""Seconds that one takes for each object, about."""

RISE, RISE_SHARE = 6_000, 0.5
"""Objects by which there may be more under a steady load, and a share of what there is: a load takes time to spread."""

LARGER, LARGER_EACH = 64 << 20, 2 << 20
"""Bytes by which the process may have grown since the last one, and for each run of the most that were under way."""

AT_REST = 16 << 20
"""Bytes, for which there is one when nothing is under way."""

LOOKS = 8
"""It is looked how large the process is after so many runs."""

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

EACH = 4_000
"""Objects that a run may have, and its share of what is kept from run to run."""

DOUBTS = 64
"""As many times as much there has to seem to be at most, after there was not."""


_keepers: set[Heap] = set()
"""Those of the process that keep the collector's schedule, one for each engine."""


class _Timer(Protocol):
    def cancel(self) -> None: ...


def _later(seconds: float, function: Callable[[], None]) -> _Timer:
    # In a context of its own: the one here is a run's, and has all that it had.
    return asyncio.get_running_loop().call_later(seconds, function, context=Context())


class Heap:
    """Collects after runs. Belongs to the event loop's thread. ``later`` calls a function after so many seconds."""

    def __init__(
        self,
        collector: Collector = COLLECTOR,
        clock: Callable[[], float] = time.perf_counter,
        later: Callable[[float, Callable[[], None]], _Timer] = _later,
    ) -> None:
        self._collector = collector
        self._clock = clock
        self._later = later
        self._timer: _Timer | None = None
        self._over = False
        self._running = 0
        self._leaves = 0.0
        """Objects that a run is known to leave."""
        self._left = 0.0
        """Those that each had left at the last collection."""
        self._doubt = 1
        self._every = FIRST
        self._begin_period()

    def _begin_period(self, *, took: float = 0.0, running: int = 0, rest_until: float = 0.0) -> None:
        self._took, self._took_with = took, running
        self._rest_until = rest_until
        self._size_before = self._collector.size()
        self._ended = self._whole = self._least = self._most = 0
        self._larger = False
        self._steady = SteadyLoad()

    def keep(self) -> None:
        """Give the collector a schedule for runs: a young collection where they have more than they should."""
        self._collector.keep()
        _keepers.add(self)
        self._over = False
        self._timer = None  # one of a loop that is gone would never come
        self._begin_period()
        self._schedule()

    def let_go(self) -> None:
        """Give the collector its own schedule back, unless another engine of the process keeps it. Nothing follows."""
        self._over = True
        if self in _keepers:
            _keepers.remove(self)
            if _keepers:
                self._schedule()
            else:
                self._collector.let_go()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def run_began(self) -> None:
        """A run is under way."""
        self._running += 1
        self._schedule()

    def run_ended(self) -> None:
        """Collect, if it is time. Called on the loop, after a run."""
        self._running -= 1
        self._schedule()
        self._ended += 1
        running, grown = self._under_way(), self._collector.grown()
        self._most = max(self._most, running)
        self._steady.run_ended(running, grown)
        if self._ended % LOOKS == 0 and self._is_larger(LARGER + LARGER_EACH * self._most):
            self._larger = True
        garbage = self._garbage(running, grown)
        due = garbage > 0 or self._larger or self._whole >= WHOLE or self._is_short(running, grown)
        if due and self._clock() >= self._rest_until:
            self._have(garbage, give_back=self._larger)
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
            self._have(0, give_back=self._is_larger(AT_REST))

    def _is_idle(self) -> bool:
        """Whether nothing is under way, and something is left."""
        left = self._whole > 0 or self._collector.grown() > LITTLE
        return self._under_way() == 0 and (left or self._is_larger(AT_REST))

    def _under_way(self) -> int:
        """Runs of all engines of the process: a collection stops each."""
        return self._running + sum(each._running for each in _keepers if each is not self)

    def _schedule(self) -> None:
        running = sum(each._running for each in _keepers)
        self._collector.come_after(EACH * (running + 1) + 2 * MUCH)

    def _garbage(self, running: int, grown: int) -> int:
        """Objects of garbage that there seem to be, if they are much; else 0."""
        if (known := int(self._ended * self._leaves)) >= MUCH:
            return known
        if self._steady.risen > self._doubt * (RISE + RISE_SHARE * (self._steady.first + self._lived(running))):
            return self._steady.risen
        return grown if grown > EACH * (running + 1) + MUCH else 0

    def _lived(self, running: int) -> float:
        """Objects that the last collection has left, and that have not ended since."""
        return self._took / TAKES * min(1.0, (running + 1) / (self._took_with + 1))

    def _is_short(self, running: int, grown: int) -> bool:
        """Whether one may be had that nothing asks for.

        The first half of a period tells how little is under way at times; in the second, such a moment is taken.
        """
        part = max(self._ended / self._every, self._whole / WHOLE)
        if running == 0:
            return part >= 1 / QUIET
        if part <= 1 / 2:
            self._least = running if self._ended == 1 else min(self._least, running)
            return False
        if self._ended < SHARE * running or (running > self._least and part < 1):
            return False
        return (self._lived(running) + grown) * TAKES <= SHORT

    def _is_larger(self, by: int) -> bool:
        return self._collector.size() > self._size_before + by

    def _have(self, garbage: int, *, give_back: bool) -> None:
        """Collect. ``garbage`` is what there seems to be."""
        began = self._clock()
        freed = self._collector.collect()
        took = self._clock() - began
        if give_back:
            self._collector.give_back()
        self._learn(garbage, freed)
        rest_until = self._clock() + min(REST * took, LONGEST)
        for each in {self, *_keepers}:
            each._begin_period(took=took, running=self._under_way(), rest_until=rest_until)

    def _learn(self, garbage: int, freed: int) -> None:
        self._every = max(1, min(MOST, self._ended * MUCH // max(freed, 1)))
        leaves = freed / max(self._ended, 1)
        if garbage and freed >= min(garbage / 2, MUCH):
            self._leaves, self._doubt = leaves, 1
        else:
            # What is found in passing may be what the first runs have left; and once little is found between waves.
            self._leaves = min(max(leaves, self._left), self._leaves)
            if garbage:
                self._doubt = min(2 * self._doubt, DOUBTS)
        self._left = leaves
