"""What the runs of a load leave, told without a collection."""

from __future__ import annotations

from runtime.engine.steady import SteadyLoad


def rounds(load: SteadyLoad, running: int, *least: int) -> None:
    for each in least:
        for end in range(running + 1):
            load.run_ended(running, each + 100 * (end % 3))


def test_a_rise_is_that_of_the_least_since_the_second_round() -> None:
    load = SteadyLoad()
    rounds(load, 10, 900, 500)
    assert (load.first, load.risen) == (500, 0)
    rounds(load, 10, 700)
    assert load.risen == 200
    rounds(load, 10, 400)
    assert load.risen == -100


def test_a_round_counts_when_it_is_over() -> None:
    load = SteadyLoad()
    rounds(load, 10, 0, 0)
    for _ in range(10):
        load.run_ended(10, 1000)
    assert load.risen == 0
    load.run_ended(10, 1000)
    assert load.risen == 1000


def test_another_load_is_another_measure() -> None:
    load = SteadyLoad()
    rounds(load, 8, 0, 0, 500)
    rounds(load, 10, 500, 500)
    assert load.risen == 500, "nearly the same"
    load.run_ended(11, 500)
    assert (load.first, load.risen) == (0, 0)
    rounds(load, 11, 5_000, 5_000, 5_000)
    assert load.risen == 0


def test_one_run_after_the_other_is_a_load_too() -> None:
    load = SteadyLoad()
    rounds(load, 0, 5, 10, 15)
    assert load.risen == 5
