"""Slots."""

from __future__ import annotations

from runtime.worker.limiter import Limiter


def test_a_route_takes_no_more_than_its_own_limit_and_the_process_has():
    limiter = Limiter(5)
    assert limiter.free_for("a", None) == 5
    assert limiter.free_for("a", 2) == 2
    for _ in range(2):
        limiter.take("a")
    assert limiter.free_for("a", 2) == 0
    assert limiter.free_for("b", None) == 3
    for _ in range(3):
        limiter.take("b")
    assert limiter.free == 0
    assert limiter.free_for("a", 9) == 0
    limiter.give_back("a")
    assert limiter.free_for("a", 2) == 1
    assert limiter.used == 4
