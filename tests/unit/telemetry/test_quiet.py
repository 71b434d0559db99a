"""Trouble that lasts is told a few times a minute, and hides no other."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any

import pytest
import structlog

from runtime.telemetry.quiet import AT_A_PLACE, OF_A_FAULT, WINDOW, Quiet

AWAY = {"event": "redis.failed", "code": "redis_unavailable"}


class Log:
    def __init__(self) -> None:
        self.now = 0.0
        self.quiet = Quiet(lambda: self.now)
        self.told: list[dict[str, Any]] = []

    def warn(self, **line: Any) -> bool:
        with contextlib.suppress(structlog.DropEvent):
            self.told.append(dict(self.quiet(None, "warning", dict(line))))
            return True
        return False


def test_the_first_lines_of_a_window_are_told_and_the_others_are_counted():
    log = Log()
    for n in range(200):
        log.now = n / 10
        log.warn(**AWAY, step="fetch", n=n)
    assert [line["n"] for line in log.told] == list(range(AT_A_PLACE))
    log.now += WINDOW
    assert log.warn(**AWAY, step="fetch")
    assert log.told[-1]["left_out"] == 200 - AT_A_PLACE
    assert log.warn(**AWAY, step="fetch")
    assert "left_out" not in log.told[-1]


def test_one_fault_at_a_hundred_places_is_ten_lines_a_minute_at_most():
    log = Log()
    for n in range(600):
        log.now = n / 10
        for route in range(100):
            log.warn(**AWAY, route=f"r{route}", step=("fetch", "settle", "begin")[n % 3], event_id=str(n))
        log.warn(event="loop.failed", loop="sweeper", code="redis_unavailable")
        log.warn(event="lease.not_renewed", worker=f"w{n}", code="redis_unavailable")
    assert OF_A_FAULT <= len(log.told) <= 10


def test_a_second_fault_is_heard_beside_one_that_lasts():
    log = Log()
    for n in range(100):
        log.warn(**AWAY, route="a", step="fetch", n=n)
    assert log.warn(**AWAY, route="b", step="settle"), "at another place"
    for route in range(100):
        log.warn(**AWAY, route=f"r{route}", step="fetch")
    assert not log.warn(**AWAY, route="c", step="fetch")
    assert log.warn(event="redis.failed", code="broker_error", route="c", step="begin"), "of another kind"
    assert log.warn(event="entries.repaired", route="c", entries=1)
    assert log.warn(event="loop.failed", loop="janitor", code="group_missing")


def test_what_many_faults_have_in_common_silences_none_of_them():
    """A code stands for whatever Redis refuses."""
    log = Log()
    for route in range(100):
        log.warn(event="redis.failed", code="broker_error", route=f"r{route}", step="begin")
    assert log.warn(event="group.not_created", code="broker_error", route="z")


def test_every_place_is_heard_of_the_events_that_need_somebody():
    log = Log()
    for name in ("outcome.held", "event.refused"):
        for route in range(100):
            told = [log.warn(event=name, code="broker_error", route=f"r{route}") for _ in range(AT_A_PLACE + 1)]
            assert told == [True] * AT_A_PLACE + [False]


def test_processes_that_were_forked_count_together():
    log, told = Log(), 0
    for _ in range(4):
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: this child needs none
            child = os.fork()
        if child == 0:
            heard = sum(log.warn(**AWAY, route=f"r{n}", step="fetch") for n in range(10))
            os.write(writing, bytes([heard]))
            os._exit(0)
        os.waitpid(child, 0)
        told += os.read(reading, 1)[0]
        os.close(reading)
        os.close(writing)
    assert told == OF_A_FAULT


def test_more_places_than_are_remembered_are_quiet_all_the_same():
    log = Log()
    for n in range(20_000):
        log.now = n * WINDOW / 1000
        log.warn(**AWAY, route=f"r{n}", step="fetch")
    assert len(log.told) <= OF_A_FAULT * 21


@pytest.mark.parametrize(
    ("method", "name"), [("info", "run.settled"), ("error", "child.hangs"), ("info", "redis.failed")]
)
def test_other_lines_are_all_told(method: str, name: str):
    quiet = Quiet(lambda: 0.0)
    for _ in range(50):
        assert quiet(None, method, {"event": name}) == {"event": name}
