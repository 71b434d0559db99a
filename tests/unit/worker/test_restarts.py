"""A child that dies is replaced at once, unless children fail to start."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.worker.restarts import LONGEST_PAUSE, MAX_FAILED_STARTS, Restarts


@dataclass
class Dead:
    """What is asked of a child that has ended."""

    reading: dict[str, str] | None
    lasted: bool
    killed: bool = False


READ, STILLBORN, SHORT = Dead({}, lasted=True), Dead(None, lasted=False), Dead({}, lasted=False)


def test_however_often_those_that_had_read_die_their_place_is_taken_at_once():
    restarts = Restarts()
    assert max(restarts.died(READ, lived=1.0) for _ in range(100)) < 0.05
    assert not restarts.given_up


def test_those_that_die_as_soon_as_they_read_are_replaced_more_and_more_slowly():
    restarts = Restarts()
    pauses = [restarts.died(SHORT, lived=1.0) for _ in range(20)]
    assert pauses[0] < 0.05
    assert LONGEST_PAUSE / 2 <= pauses[-1] <= LONGEST_PAUSE
    assert not restarts.given_up
    assert restarts.died(READ, lived=1.0) < 0.05


def test_after_several_that_never_read_the_worker_gives_up():
    restarts = Restarts()
    for _ in range(MAX_FAILED_STARTS - 1):
        restarts.died(STILLBORN, lived=1.0)
    restarts.reads()
    for _ in range(MAX_FAILED_STARTS - 1):
        restarts.died(STILLBORN, lived=1.0)
    assert not restarts.given_up
    restarts.died(Dead(None, lasted=False, killed=True), lived=125.0)
    assert restarts.given_up
