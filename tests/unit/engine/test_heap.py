"""When the garbage of runs is collected: seldom, in quiet moments, and before it is much."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from runtime.engine import heap as heap_module
from runtime.engine.collector import FAR_OFF, MIDDLE, Collector
from runtime.engine.heap import (
    AT_REST,
    EACH,
    FIRST,
    IDLE,
    LARGER,
    LARGER_EACH,
    LITTLE,
    LOOKS,
    MOST,
    MUCH,
    QUIET,
    REST,
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


class Timer:
    """What is called later."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Times(Collector):
    """A clock, runs that have ``lives`` objects and leave ``leaves``, and a collection that takes TAKES for each."""

    def __init__(self, *, leaves: int, under_way: int = 0, lives: int = 700) -> None:
        super().__init__()
        self.now = 0.0
        self.leaves, self.lives = leaves, lives
        self.garbage = self.extra = self.lived = 0
        self.bytes = self.since = self.given_back = 0
        self.had: list[tuple[int, int, int]] = []
        """Collections: runs since the last, runs under way, objects found."""
        self.took = self.longest = 0.0
        self.timers: list[Timer] = []
        self.under_way = 0
        self.heap = Heap(self, lambda: self.now, self.later)
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

    def size(self) -> int:
        return self.bytes

    def give_back(self) -> None:
        self.given_back += 1

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
        times.bytes += 1 << 20
        times.run(1)
    assert times.had
    assert max(runs for runs, _, _ in times.had) <= (LARGER + LARGER_EACH * under_way) // (1 << 20) + LOOKS
    had = len(times.had)
    times.run(300)
    assert len(times.had) <= had + 1, "what it has kept since is no reason"


def test_what_is_freed_is_given_back_where_the_process_has_grown() -> None:
    times = Times(leaves=1, under_way=1)
    times.run(FIRST)
    assert times.had and not times.given_back
    times.bytes += LARGER + LARGER_EACH + 1
    times.run(LOOKS)
    assert times.given_back == 1
    times.run(LOOKS)
    assert times.given_back == 1


def test_growth_that_is_seen_while_it_rests_is_not_forgotten() -> None:
    times = Times(leaves=0, under_way=40, lives=3000)
    times.heap._rest_until = 1.0
    times.bytes += 2 * LARGER + 40 * LARGER_EACH
    times.run(LOOKS)
    times.bytes = 0
    assert not times.had
    times.now = 1.0
    times.run(1)
    assert len(times.had) == 1


@pytest.mark.parametrize("leaves", [1000, 3000, 5000])
def test_runs_that_leave_very_much_are_known_at_once(leaves: int) -> None:
    times = Times(leaves=leaves, under_way=40)
    times.run(1000)
    found = [found for _, _, found in times.had]
    assert found[0] <= EACH * 41 + MUCH + leaves
    # It rests after each.
    assert max(found[1:]) <= MUCH + leaves + leaves * REST * times.longest / 0.01


def test_what_seemed_to_be_garbage_and_was_not_has_to_be_twice_as_much() -> None:
    times = Times(leaves=0, under_way=10, lives=100)
    times.run(30)
    times.had.clear()
    for _ in range(30):
        times.extra, times.lived = 0, times.lived - 7_000  # what lives on
        times.run(33)
    assert 1 <= len(times.had) <= 6


def test_runs_that_leave_nothing_any_more_are_known_to() -> None:
    times = Times(leaves=1000, under_way=40, lives=3000)
    times.run(500)
    times.leaves = 0
    times.run(100)
    times.had.clear()
    times.run(5000)
    assert len(times.had) <= 1


def test_what_a_load_has_grown_by_counts_when_it_falls() -> None:
    times = Times(leaves=0, under_way=40)
    times.bytes += LARGER + 30 * LARGER_EACH
    times.end(36)
    times.run(3 * LOOKS)
    assert not times.given_back


def test_what_lived_under_a_load_that_is_over_is_no_reason_to_wait() -> None:
    times = Times(leaves=0, under_way=40, lives=3000)
    times.bytes += 2 * LARGER + 40 * LARGER_EACH
    times.run(LOOKS)
    assert times.longest > SHORT
    times.end(39)
    times.had.clear()
    times.run(MOST)
    assert times.had and times.had[0][1] == 1


def test_one_collection_is_that_of_all_engines() -> None:
    times = Times(leaves=0)
    other = Heap(times, lambda: times.now, times.later)
    times.heap.keep()
    other.keep()
    times.bytes += 3 * LARGER
    times.run(LOOKS)
    for _ in range(LOOKS):
        other.run_began()
        other.run_ended()
    assert len(times.had) == 1


def test_a_process_that_has_grown_is_collected_at_rest() -> None:
    times = Times(leaves=1)
    times.bytes += AT_REST
    times.run(1)
    assert not times.timers
    times.bytes += 1
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
    times = Times(leaves=0)
    other = Heap(times, later=times.later)
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
    collector = Collector()
    heaps = [Heap(collector), Heap(collector)]
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
    heap = Heap(Collector(), later=lambda _, function: Timer(function))
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
