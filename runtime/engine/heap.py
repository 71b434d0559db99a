"""When the garbage of runs is collected.

A run leaves graphs that refer to themselves; only the garbage collector frees these. Left to itself it lets those of
many runs pile up in its oldest generation and then stops the loop, and every run on it, for all of them at once. Here
it is asked after every few runs, so many that a collection is short. Its own schedule for that generation is kept far
off, for runs that leave much and do not end. The components that nobody has any more are freed when a run ends.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

AIM = 0.025
"""Seconds that a collection should take."""

SHARE = 0.5
"""So many runs have ended for each that is under way: what lives is looked at too, and nothing is found there."""

REST = 4
"""A collection is followed by so many times its own duration without one: where much lives, each is long."""

LONGEST = 2.0
"""Seconds. Longer, the garbage of busy seconds would make the next one longer still."""

MOST = 1000
"""Runs after which there is one, however cheap they are."""

YOUNG, MIDDLE = 30_000, 20
"""New objects, and young collections, before the next; usually 700 and 10. A run makes thousands of objects that live
as long as it does: looked at that often they cost a tenth of it."""

FAR_OFF = 200
"""Collections of the middle generation before the collector would look at the oldest by itself; usually 10."""


_OWN = 3
"""References to a component that only its vertex has: the vertex's, a local name, and the argument of the question."""


def free_components(graph: Any) -> None:
    """Free the components of a graph whose run has ended: those that nothing but their vertex refers to.

    A task, thread, tool or exception of the run that lives on, if only for a moment, has its component; that one, the
    graph and its vertices are left to the collector.
    """
    for vertex in graph.vertices:
        component = vertex.custom_component
        if component is not None and sys.getrefcount(component) <= _OWN:
            vertex.custom_component = None


class Heap:
    """Collects after runs. Belongs to the event loop's thread."""

    def __init__(
        self, collect: Callable[[], object] = gc.collect, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._collect = collect
        self._clock = clock
        self._before: tuple[int, int, int] | None = None
        self._running = 0
        self._ended = 0
        self._every = 1
        self._rest_until = 0.0

    def keep(self) -> None:
        """Give the collector a schedule for runs, with that for old objects far off."""
        if self._before is None:
            self._before = gc.get_threshold()
            gc.set_threshold(YOUNG, MIDDLE, FAR_OFF)

    def let_go(self) -> None:
        """Give the collector its own schedule back."""
        if self._before is not None:
            gc.set_threshold(*self._before)
            self._before = None

    def run_began(self) -> None:
        """A run is under way."""
        self._running += 1

    def run_ended(self) -> None:
        """Collect, if it is time. Called on the loop, after a run."""
        self._running -= 1
        self._ended += 1
        if self._ended < max(self._every, SHARE * self._running):
            return
        began = self._clock()
        if began < self._rest_until:
            return
        self._collect()
        ended = self._clock()
        took = max(ended - began, 1e-6)
        self._rest_until = ended + min(REST * took, LONGEST)
        self._every = max(1, min(MOST, int(self._ended * AIM / took)))
        self._ended = 0
