"""Whoever waits for another's end waits longer than that one may take, whatever the grace."""

from __future__ import annotations

import pytest

from runtime.settings import RedisSettings, WorkerSettings
from runtime.worker import deadlines


@pytest.mark.parametrize("grace", [0.0, 1.0, WorkerSettings().grace, 3600.0])
def test_each_level_waits_longer_than_the_one_below(grace: float) -> None:
    order = [
        WorkerSettings(grace=grace).grace + deadlines.LAST_WRITES,
        deadlines.of_child(grace),
        deadlines.of_kill(grace),
        deadlines.of_supervisor(grace),
        deadlines.of_up(grace),
    ]
    assert order == sorted(set(order))


def test_a_child_can_say_goodbye_to_a_redis_that_does_not_answer() -> None:
    assert RedisSettings().command_timeout <= deadlines.GOODBYE


def test_up_and_the_supervisor_use_them() -> None:
    import inspect

    from runtime.cli import up
    from runtime.worker import supervisor

    assert "deadlines.of_up(" in inspect.getsource(up)
    assert "deadlines.of_kill(" in inspect.getsource(supervisor)
