"""When the garbage of runs is collected: often enough to be short, seldom enough to be cheap."""

from __future__ import annotations

import gc

from runtime.engine.heap import AIM, FAR_OFF, MOST, SHARE, Heap


class Times:
    """A clock, and a collection that takes a time for each run and a time for what lives."""

    def __init__(self, *, each: float, living: float = 0.0) -> None:
        self.now = 0.0
        self.each, self.living = each, living
        self.since = 0
        self.pauses: list[tuple[int, float]] = []

    def __call__(self) -> float:
        return self.now

    def collect(self) -> None:
        took = self.each * self.since + self.living
        self.pauses.append((self.since, took))
        self.now += took
        self.since = 0

    def run(self, heap: Heap, times: int, *, every: float) -> None:
        for _ in range(times):
            self.now += every
            self.since += 1
            heap.run_ended()


def test_collections_are_as_long_as_they_should_be() -> None:
    times = Times(each=0.001)
    times.run(Heap(times.collect, times), 500, every=0.1)
    assert all(took <= 2 * AIM for _, took in times.pauses)
    assert 40 <= len(times.pauses) <= 120


def test_what_lives_is_not_looked_at_all_the_time() -> None:
    times = Times(each=0.0001, living=0.1)
    times.run(Heap(times.collect, times), 1000, every=0.01)
    spent = sum(took for _, took in times.pauses)
    assert spent <= times.now / SHARE + times.pauses[-1][1]


def test_cheap_runs_are_collected_too() -> None:
    times = Times(each=1e-9)
    times.run(Heap(times.collect, times), 3 * MOST, every=0.001)
    assert max(runs for runs, _ in times.pauses) <= MOST
    assert len(times.pauses) >= 2


def test_the_collectors_own_schedule_comes_back() -> None:
    before = gc.get_threshold()
    heap = Heap()
    heap.keep()
    heap.keep()
    assert gc.get_threshold() == (*before[:2], FAR_OFF)
    heap.let_go()
    assert gc.get_threshold() == before
