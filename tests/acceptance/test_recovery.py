"""The benchmark of recovery, played small: what it measures must hold in the suite too, whatever it takes there."""

from __future__ import annotations

from tests.benchmarks import recovery

FAST = {"lease": 2.0, "sweep_interval": 0.2, "poll_interval": 0.2}


async def test_what_a_killed_child_ran_runs_again_long_before_its_lease_ends():
    taken = await recovery.deaths_of_children(8, lease=15.0, poll_interval=60.0)
    assert max(taken) < 5.0


async def test_what_a_killed_worker_ran_runs_again_soon_after_its_lease():
    taken = await recovery.deaths_of_workers(4, 4, **{**FAST, "poll_interval": 60.0})
    assert max(taken) < FAST["lease"] + 5.0


async def test_restarts_leave_no_consumers_behind():
    figures = await recovery.restarts(6, at_once=3, **FAST)
    assert figures["restarts_events_done"] == 6
    assert figures["restarts_consumers_left"] <= figures["restarts_live_workers"] + 2


async def test_many_workers_that_start_at_once_on_stale_entries_run_each_once():
    figures = await recovery.stale_entries(8, 400, **FAST)
    assert figures["stale_executed_once"] == 400
    assert figures["stale_executed_again"] == 0
