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
import gc
import time
from collections.abc import Callable
from contextvars import Context
from typing import Protocol

from runtime.engine.steady import SteadyLoad
from runtime.telemetry.resident import resident

MUCH = 20_000
"""Objects of garbage, some 2 MB, after which there is a collection: they add 10 to 20 ms to what it takes."""

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

EACH = 5_000
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
    after so many seconds, ``size`` tells the process's, in bytes.
    """

    def __init__(
        self,
        collect: Callable[[], int] = gc.collect,
        clock: Callable[[], float] = time.perf_counter,
        grown: Callable[[], int] = _grown,
        later: Callable[[float, Callable[[], None]], _Timer] = _later,
        size: Callable[[], int] = resident,
    ) -> None:
        self._collect = collect
        self._clock = clock
        self._grown = grown
        self._later = later
        self._size = size
        self._size_before = size()
        self._timer: _Timer | None = None
        self._over = False
        self._running = 0
        self._ended = 0
        self._whole = 0
        self._least = self._most = 0
        self._every = FIRST
        self._took = 0.0
        self._leaves = 0.0
        self._load = SteadyLoad()
        self._rest_until = 0.0

    def keep(self) -> None:
        """Give the collector a schedule for runs: a young collection where they have more than they should."""
        if not _keepers:
            _schedules.append(gc.get_threshold())
        _keepers.add(self)
        self._over = False
        self._size_before = self._size()
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
        running, grown = self._under_way(), self._grown()
        self._most = max(self._most, running)
        self._load.run_ended(running, grown)
        leave_much = self._leave_much()
        due = leave_much or self._is_much(running, grown) or self._is_short(running, grown)
        if due and self._clock() >= self._rest_until:
            self._have(leave_much=leave_much)
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
            self._have(leave_much=False)

    def _is_idle(self) -> bool:
        """Whether nothing is under way, and something is left."""
        return self._under_way() == 0 and (self._whole > 0 or self._grown() > LITTLE or self._is_larger(AT_REST))

    def _under_way(self) -> int:
        """Runs of all engines of the process: a collection stops each."""
        return self._running + sum(each._running for each in _keepers if each is not self)

    def _set_young(self) -> None:
        if _keepers:
            running = sum(each._running for each in _keepers)
            gc.set_threshold(EACH * (running + 1) + 2 * MUCH, MIDDLE, FAR_OFF)

    def _leave_much(self) -> bool:
        """Whether it is the runs themselves that have left much."""
        lives = self._load.first + self._took / TAKES
        return self._ended * self._leaves >= MUCH or self._load.risen > RISE + RISE_SHARE * lives

    def _is_much(self, running: int, grown: int) -> bool:
        """Whether there is much, whatever it comes from."""
        return (
            grown > EACH * (running + 1) + MUCH
            or self._whole >= WHOLE
            or (self._ended % LOOKS == 0 and self._is_larger(LARGER + LARGER_EACH * self._most))
        )

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
        short = self._took + grown * TAKES <= SHORT
        return short and self._ended >= SHARE * running and (running <= self._least or part >= 1)

    def _is_larger(self, by: int) -> bool:
        return self._size() > self._size_before + by

    def _have(self, *, leave_much: bool) -> None:
        began = self._clock()
        found = self._collect()
        ended = self._clock()
        self._took = ended - began
        self._rest_until = ended + min(REST * self._took, LONGEST)
        self._every = max(1, min(MOST, self._ended * MUCH // max(found, 1)))
        leaves = found / max(self._ended, 1)
        # What is found in passing may be what a flow's load has left, or its first runs.
        self._leaves = leaves if leave_much else min(leaves, self._leaves)
        self._ended = self._whole = self._most = 0
        self._load = SteadyLoad()
        self._size_before = self._size()
