"""Chaos for a minute, within `make test`. `make chaos` runs longer, on both servers."""

from __future__ import annotations

import pytest

from tests.chaos.run import Plan, run


@pytest.mark.timeout(240)
async def test_nothing_is_lost_nothing_is_run_twice_and_nothing_is_left(capsys):
    report = await run(Plan(seed=7, seconds=40.0, events=4000, every=1.0))
    with capsys.disabled():
        print("\n" + "\n".join(f"{name:50} {value}" for name, value in report.figures.items()))
    assert report.broken == [], "\n".join(report.stories)
    figures = report.figures
    assert figures["completed"] + figures["dead-lettered"] >= figures["events"] == 4000
    assert figures["epochs"] >= 2
