"""Trouble that lasts is told a few times a minute."""

from __future__ import annotations

import contextlib

import pytest
import structlog

from runtime.telemetry.quiet import LINES, WINDOW, Quiet


def test_the_first_lines_of_a_window_are_told_and_the_others_are_counted():
    now = [0.0]
    quiet = Quiet(lambda: now[0])
    told = []
    for n in range(200):
        now[0] = n / 10
        with contextlib.suppress(structlog.DropEvent):
            told.append(quiet(None, "warning", {"event": "redis.failed", "n": n}))
    assert [line["n"] for line in told] == list(range(LINES))
    now[0] += WINDOW
    assert quiet(None, "warning", {"event": "redis.failed"}) == {"event": "redis.failed", "left_out": 200 - LINES}
    assert "left_out" not in quiet(None, "warning", {"event": "redis.failed"})


@pytest.mark.parametrize(
    ("method", "name"), [("info", "run.settled"), ("error", "child.hangs"), ("info", "redis.failed")]
)
def test_other_lines_are_all_told(method: str, name: str):
    quiet = Quiet(lambda: 0.0)
    for _ in range(50):
        assert quiet(None, method, {"event": name}) == {"event": name}
