"""When the garbage of runs is collected: seldom, in quiet moments, and before it is much."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable

import pytest

from runtime.engine import heap as heap_module
from runtime.engine.heap import (
    AT_REST,
    EACH,
    FAR_OFF,
    FIRST,
    IDLE,
    LARGER,
    LARGER_EACH,
    LITTLE,
    LOOKS,
    MIDDLE,
    MOST,
    MUCH,
    QUIET,
    RISE,
    RISE_SHARE,
    SHORT,
    TAKES,
    WHOLE,
    Heap,
)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the engine that other tests of this process may have."""
    monkeypatch.setattr(heap_module, "_keepers", set())
    monkeypatch.setattr(heap_module, "_schedules", [])


class Timer:
    """What is called later."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Times:
    """A clock, runs that have ``lives`` objects and leave ``leaves``, and a collection that takes TAKES for each."""

    def __init__(self, *, leaves: int, under_way: int = 0, lives: int = 700) -> None:
        self.now = 0.0
        self.leaves, self.lives = leaves, lives
        self.garbage = self.extra = self.lived = 0
        self.size = self.since = 0
        self.had: list[tuple[int, int, int]] = []
        """Collections: runs since the last, runs under way, objects found."""
        self.took = self.longest = 0.0
        self.timers: list[Timer] = []
        self.under_way = 0
        self.heap = Heap(self.collect, lambda: self.now, self.grown, self.later, lambda: self.size)
        self.begin(under_way)

    def begin(self, count: int) -> None:
        for _ in range(count):
            self.heap.run_began()
            self.under_way += 1

    def end(self, count: int = 1, *, whole: bool = False) -> None:
        for _ in range(count):
            self.now += 0.01
            self.under_way -= 1
            self.since += 1
            self.garbage += self.leaves
            if whole:
                self.heap.left_whole()
            self.heap.run_ended()

    def run(self, times: int, *, whole: bool = False) -> None:
        for _ in range(times):
            self.begin(1)
            self.end(whole=whole)

    def later(self, seconds: float, function: Callable[[], None]) -> Timer:
        assert seconds == IDLE
        self.timers.append(Timer(function))
        return self.timers[-1]

    def rest(self) -> None:
        """Let the time pass that the timers wait for."""
        due, self.timers = self.timers, []
        for timer in due:
            if not timer.cancelled:
                timer.function()

    def grown(self) -> int:
        return max(0, self.garbage + self.extra + self.lives * self.under_way - self.lived)

    def collect(self) -> int:
        found, self.garbage, self.extra = self.garbage, 0, 0
        self.lived = self.lives * self.under_way
        self.had.append((self.since, self.under_way, found))
        took = (found + self.lived) * TAKES
        self.longest = max(self.longest, took)
        self.now += took
        self.took += took
        self.since = 0
        return found


@pytest.mark.parametrize("lives", [100, 700, 3000])
def test_under_a_load_that_does_not_end_garbage_is_bounded(lives: int) -> None:
    times = Times(leaves=100, under_way=40, lives=lives)
    times.run(3000)
    found = [found for _, _, found in times.had]
    known = next(place for place, each in enumerate(found) if each > 10_000) + 1
    # A round that tells nothing, one to compare with, one to its end.
    assert max(found[:known]) <= RISE + RISE_SHARE * (lives * 41 + 10_000) + 3 * 41 * 100
    assert max(found[known:]) <= MUCH
    assert len(found[known:]) >= 2000 * 100 // MUCH


def test_runs_that_leave_nothing_are_collected_seldom() -> None:
    times = Times(leaves=0, under_way=40)
    times.run(10 * MOST)
    assert 10 <= len(times.had) <= 21
    assert max(runs for runs, _, _ in times.had) <= MOST


def test_runs_that_leave_nothing_are_not_stopped_for_long() -> None:
    times = Times(leaves=0, under_way=40, lives=3000)
    times.run(10 * MOST)
    assert not times.had
    times.end(40)
    assert times.had and times.longest <= SHORT


def test_a_load_that_takes_time_to_spread_is_no_garbage() -> None:
    times = Times(leaves=0, under_way=40, lives=3000)
    times.run(100)
    for _ in range(40):
        times.extra += 1000
        times.run(50)
    assert not times.had


def test_what_the_first_runs_leave_is_not_what_each_leaves() -> None:
    times = Times(leaves=0, lives=3000)
    times.extra = 5_000
    times.run(FIRST // QUIET + 1)
    assert len(times.had) == 1
    times.begin(40)
    times.run(2 * MOST)
    assert len(times.had) == 1


@pytest.mark.parametrize("under_way", [1, 40])
def test_a_process_that_grows_is_collected_however_few_objects_it_is(under_way: int) -> None:
    times = Times(leaves=1, under_way=under_way, lives=3000)
    for _ in range(300):
        times.size += 1 << 20
        times.run(1)
    assert times.had
    assert max(runs for runs, _, _ in times.had) <= (LARGER + LARGER_EACH * under_way) // (1 << 20) + LOOKS
    had = len(times.had)
    times.run(300)
    assert len(times.had) <= had + 1, "what it has kept since is no reason"


def test_a_process_that_has_grown_is_collected_at_rest() -> None:
    times = Times(leaves=1)
    times.size += AT_REST
    times.run(1)
    assert not times.timers
    times.size += 1
    times.run(1)
    times.rest()
    assert len(times.had) == 1


def test_a_moment_with_little_under_way_is_waited_for() -> None:
    times = Times(leaves=100)
    for _ in range(30):  # from none to forty and back to four, again and again
        times.begin(40 - times.under_way)
        times.end(36)
    assert times.had
    assert all(under_way == 4 for _, under_way, _ in times.had)


def test_a_moment_that_does_not_come_is_not_waited_for_longer_than_garbage_may_grow() -> None:
    times = Times(leaves=100, under_way=4, lives=300)
    times.run(FIRST // 2)
    times.begin(36)
    times.run(FIRST)
    assert times.had[0][0] == FIRST


def test_with_nothing_under_way_it_is_had_early() -> None:
    times = Times(leaves=1000)
    times.run(400)
    assert max(found for _, _, found in times.had) <= max(MUCH / QUIET, 1000 * FIRST / QUIET) + 1000


def test_runs_that_leave_all_they_had_are_collected_soon() -> None:
    times = Times(leaves=0, under_way=40)
    times.run(MOST // 4)
    assert not times.had or times.had[-1][0] > WHOLE
    before = len(times.had)
    times.run(WHOLE, whole=True)
    assert len(times.had) > before


def test_growth_is_bounded_whatever_it_comes_from() -> None:
    times = Times(leaves=0, under_way=10, lives=0)
    times.run(5)
    assert not times.had
    times.extra = EACH * 11 + MUCH
    times.run(1)
    assert not times.had
    times.extra += 1
    times.run(1)
    assert len(times.had) == 1


def test_much_that_lives_does_not_take_the_loop() -> None:
    times = Times(leaves=1000, under_way=40, lives=5_000)
    times.run(1000)
    assert len(times.had) >= 3
    assert times.took <= times.now / 3


def test_what_is_left_when_no_more_runs_come_is_collected() -> None:
    times = Times(leaves=LITTLE)
    times.run(1)
    times.rest()
    assert not times.had, "as little as that is left"
    times.run(1)
    times.run(1)
    assert len(times.timers) == 1, "one timer for all"
    times.begin(1)
    times.rest()
    assert not times.had, "nothing stops a run that is under way"
    times.end()
    times.rest()
    assert times.had == [(4, 0, 4 * LITTLE)]
    times.rest()
    assert len(times.had) == 1


def test_a_graph_that_is_left_whole_after_the_last_run_is_collected() -> None:
    times = Times(leaves=0)
    times.run(1)
    times.heap.left_whole()
    times.rest()
    assert len(times.had) == 1


def test_nothing_is_collected_once_the_heap_is_let_go() -> None:
    times = Times(leaves=LITTLE + 1)
    times.run(1)
    times.heap.let_go()
    times.rest()
    assert not times.had


GROWTH = """
import gc
from runtime.engine.heap import FAR_OFF, MIDDLE, _grown

gc.set_threshold(50, MIDDLE, FAR_OFF)
for count in (0, 1, 297, 304, 700, 5_000, 40_000):
    gc.collect()
    kept = [[each] for each in range(count)]
    assert _grown() >= len(kept), (count, _grown())
    del kept
"""


def test_growth_is_never_told_too_low() -> None:
    """What young collections have moved on counts too. In a process where no other thread frees anything."""
    subprocess.run([sys.executable, "-c", GROWTH], check=True)


def test_what_ends_after_the_engine_has_no_timer() -> None:
    times = Times(leaves=0)
    times.heap.let_go()
    times.heap.left_whole()
    assert not times.timers
    times.heap.keep()
    times.heap.left_whole()
    assert len(times.timers) == 1
    times.heap.keep()  # on another loop: the timer of the first never comes
    times.heap.left_whole()
    assert len(times.timers) == 2
    times.heap.let_go()


def test_an_idle_engine_stops_no_run_of_another() -> None:
    times, other = Times(leaves=0), Heap()
    times.heap.keep()
    other.keep()
    other.run_began()
    times.run(FIRST // 2)
    times.heap.left_whole()
    times.rest()
    assert not times.had and not times.timers
    other.run_ended()
    times.run(1)
    assert len(times.had) == 1


@pytest.mark.parametrize("first", [0, 1])
def test_two_engines_keep_one_schedule(first: int) -> None:
    before = gc.get_threshold()
    heaps = [Heap(), Heap()]
    for heap in heaps:
        heap.keep()
        heap.run_began()
    assert gc.get_threshold() == (3 * EACH + 2 * MUCH, MIDDLE, FAR_OFF), "each has a run"
    heaps[first].let_go()
    assert gc.get_threshold() == (2 * EACH + 2 * MUCH, MIDDLE, FAR_OFF)
    heaps[1 - first].let_go()
    assert gc.get_threshold() == before


def test_the_collectors_own_schedule_comes_back() -> None:
    before = gc.get_threshold()
    heap = Heap()
    heap.keep()
    heap.keep()
    assert gc.get_threshold() == (EACH + 2 * MUCH, MIDDLE, FAR_OFF)
    heap.run_began()
    assert gc.get_threshold() == (2 * EACH + 2 * MUCH, MIDDLE, FAR_OFF), "a run may have that much"
    heap.run_ended()
    heap.let_go()
    assert gc.get_threshold() == before
    heap.run_began()
    assert gc.get_threshold() == before
