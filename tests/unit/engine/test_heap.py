"""When the garbage of runs is collected: often enough to be short, seldom enough to be cheap."""

from __future__ import annotations

import gc

from runtime.engine.heap import AIM, FAR_OFF, MIDDLE, MOST, SHARE, YOUNG, Heap


class Times:
    """A clock, and a collection that takes a time for each ended run and for each that is under way."""

    def __init__(self, *, each: float, under_way: int = 0) -> None:
        self.now = 0.0
        self.each, self.under_way = each, under_way
        self.since = 0
        self.pauses: list[tuple[int, float]] = []
        self.heap = Heap(self.collect, lambda: self.now)
        for _ in range(under_way):
            self.heap.run_began()

    def collect(self) -> None:
        took = self.each * (self.since + self.under_way)
        self.pauses.append((self.since, took))
        self.now += took
        self.since = 0

    def run(self, times: int) -> None:
        for _ in range(times):
            self.heap.run_began()
            self.now += 10 * self.each
            self.since += 1
            self.heap.run_ended()


def test_collections_are_as_long_as_they_should_be() -> None:
    times = Times(each=0.001)
    times.run(500)
    assert all(took <= 2 * AIM for _, took in times.pauses)
    whole = 500 * 0.001 / AIM
    assert whole <= len(times.pauses) <= 2 * whole, "nor shorter than they need to be"


def test_what_lives_is_not_looked_at_all_the_time() -> None:
    times = Times(each=0.001, under_way=200)
    times.run(1000)
    assert sum(took for _, took in times.pauses) <= 0.001 * 1000 * (1 + 1 / SHARE)


def test_garbage_does_not_pile_up_where_collections_are_slow() -> None:
    times = Times(each=0.01, under_way=40)
    times.run(1000)
    assert max(runs for runs, _ in times.pauses) <= 41


def test_much_that_lives_does_not_take_the_loop() -> None:
    times = Times(each=0.001, under_way=1)
    times.under_way = 200  # a table of some component's, say: it is looked at each time
    times.run(1000)
    assert sum(took for _, took in times.pauses) <= times.now / 3


def test_cheap_runs_are_collected_too() -> None:
    times = Times(each=1e-9)
    times.run(3 * MOST)
    assert max(runs for runs, _ in times.pauses) <= MOST
    assert len(times.pauses) >= 2


def test_the_collectors_own_schedule_comes_back() -> None:
    before = gc.get_threshold()
    heap = Heap()
    heap.keep()
    heap.keep()
    assert gc.get_threshold() == (YOUNG, MIDDLE, FAR_OFF)
    heap.let_go()
    assert gc.get_threshold() == before
