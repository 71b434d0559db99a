"""Nobody pays for the stretches in which a neighbour held the loop up."""

from __future__ import annotations

import asyncio
import contextvars
import os
import time
from collections.abc import Callable

import pytest

from runtime.worker.board import Board, boot_time
from runtime.worker.loop_clock import NOTABLE, UNKNOWN_MOST, LoopClock
from runtime.worker.watchdog import LoopBlockedError, RunMark, Watchdog, current_run


class Hand:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hand():
    return Hand()


@pytest.fixture
def clock(hand):
    return LoopClock(hand)


def stretch(clock: LoopClock, hand: Hand, seconds: float, *seen: str) -> None:
    """A turn of the loop that takes so long, in which these were seen at work."""
    clock.works(0.0)
    for token in seen:
        clock.sees(token)
    hand.now += seconds
    clock.turns()


def test_a_stretch_comes_off_for_all_but_the_one_that_caused_it(clock, hand):
    stretch(clock, hand, 3.0, "a", "a", "a")
    assert clock.lag_of("b", 100.0) == 3.0
    assert clock.lag_of("a", 100.0) == 0.0


def test_a_stretch_of_several_is_shared_as_they_were_seen(clock, hand):
    stretch(clock, hand, 4.0, "a", "a", "a", "")
    assert clock.lag_of("a", 100.0) == pytest.approx(1.0)
    assert clock.lag_of("b", 100.0) == pytest.approx(4.0)


def test_only_what_came_after_the_moment_counts(clock, hand):
    stretch(clock, hand, 2.0, "a")
    began = hand.now
    stretch(clock, hand, 1.0, "a")
    assert clock.lag_of("b", began) == pytest.approx(1.0)
    assert clock.lag_of("b", began - 0.5) == pytest.approx(1.5)
    assert clock.lag_of("b", hand.now) == 0.0


def test_the_ordinary_turns_of_a_busy_loop_do_not_count(clock, hand):
    for _ in range(100):
        stretch(clock, hand, NOTABLE / 2, "a")
    assert clock.lag_of("b", 100.0) == 0.0


def test_a_stretch_that_goes_on_counts_already(clock, hand):
    clock.works(0.0)
    clock.sees("a")
    hand.now += 5.0
    assert clock.lag_of("b", 100.0) == pytest.approx(5.0)
    assert clock.lag_of("a", 100.0) == 0.0


def test_what_was_seen_in_a_short_turn_is_not_held_against_anybody_in_the_next(clock, hand):
    stretch(clock, hand, NOTABLE / 2, "b")
    stretch(clock, hand, 2.0, "a")
    assert clock.lag_of("b", 100.0) == pytest.approx(2.0)


def test_a_short_stretch_may_end_while_another_thread_asks():
    turning: list[Callable[[], None]] = []
    clock = LoopClock(lambda: turning.pop()() or 1.0 if turning else 1.0)
    clock.works(0.0)
    turning.append(clock.turns)
    assert clock.lag_of("r", 0.0) == 0.0
    assert not turning


def test_where_nobody_was_seen_all_are_given_the_time_but_not_for_ever(clock, hand):
    stretch(clock, hand, 10.0)
    assert clock.lag_of("a", 100.0) == pytest.approx(10.0)
    hand.now += 1000.0
    clock.works(1000.0)  # a selector that came back late: the process was stopped, or a thread held the interpreter
    clock.turns()
    assert clock.lag_of("a", 100.0) == UNKNOWN_MOST


def test_another_loops_runs_were_held_up_by_nobody():
    async def ask() -> float:
        clock, began = LoopClock(), boot_time()
        time.sleep(2 * NOTABLE)
        await asyncio.sleep(0)
        return clock.lag_of("a", began)

    assert asyncio.run(ask()) == 0.0


def marked(token: str, seconds: float, work) -> asyncio.Task[object]:
    """A task as the processor makes one for a run with this timeout."""
    context = contextvars.copy_context()
    context.run(current_run.set, RunMark(token, boot_time() + seconds))
    return asyncio.create_task(work, context=context)


async def block(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)
    await asyncio.sleep(0)


def on_a_watched_loop(scenario):
    """Run ``scenario(clock)`` on a loop with a clock and a watchdog; its answer."""
    clock = LoopClock()

    async def main():
        slot = Board().slot(0)
        slot.clear()
        with Watchdog(asyncio.get_running_loop(), slot, clock, supervisor=os.getppid()):
            return await scenario(clock)

    with asyncio.Runner(loop_factory=clock.new_loop) as runner:
        return runner.run(main())


def test_a_real_loop_tells_the_blocker_from_its_neighbour():
    async def scenario(clock: LoopClock) -> tuple[float, float]:
        began = boot_time()
        await marked("blocker", 60.0, block(1.0))
        return clock.lag_of("blocker", began), clock.lag_of("beside", began)

    blocker, beside = on_a_watched_loop(scenario)
    assert blocker < NOTABLE
    assert beside > 0.9


def test_a_run_is_interrupted_when_its_own_time_is_over_and_not_its_neighbours():
    async def scenario(clock: LoopClock) -> tuple[object, object]:
        # The second one's second is over before it has been given any of it.
        first = marked("first", 60.0, block(1.6))
        second = marked("second", 1.5, block(1.3))
        third = marked("third", 1.2, block(60.0))
        return tuple(await asyncio.gather(first, second, third, return_exceptions=True))

    first, second, third = on_a_watched_loop(scenario)
    assert (first, second) == (None, None)
    assert isinstance(third, LoopBlockedError)
