"""Liveness fails where a restart helps, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.worker.probes import ChildView, WorkerView, not_live, not_ready

CHILD = ChildView("w-1", reading=True, beat=0.3, poll=1.0, pick=5.0, used=0)
WELL = WorkerView(
    started=100.0,
    loaded=True,
    draining=False,
    processes=1,
    concurrency=10,
    hang_timeout=60.0,
    redis_age=2.0,
    short_of_children=0.0,
    backlog=0.0,
    children=(CHILD,),
)


def child(**changes) -> WorkerView:
    return replace(WELL, children=(replace(CHILD, **changes),))


def test_a_well_worker_lives_and_is_ready():
    assert not_live(WELL) == []
    assert not_ready(WELL) == []


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (child(poll=31.0), "has not looked at its streams"),
        (child(beat=91.0, poll=91.0), "has stood still"),
        (replace(WELL, short_of_children=31.0, children=()), "0 of 1 processes"),
        (replace(child(pick=31.0), backlog=31.0), "nothing was picked up"),
    ],
)
def test_d15_t24_t25_what_a_restart_helps(view, reason):
    [told] = not_live(view)
    assert reason in told


@pytest.mark.parametrize(
    "view",
    [
        replace(child(poll=600.0, pick=600.0), redis_age=600.0),  # Redis is away
        child(beat=45.0, poll=45.0),  # a component blocks the loop for three leases: it is killed at its limit
        replace(child(used=10, pick=600.0), backlog=600.0),  # every place is taken by a long run
        replace(child(used=1, pick=600.0), backlog=600.0),  # a route's own limit holds the others back
        replace(child(pick=5.0), backlog=600.0),  # a backlog that is being worked on
        replace(child(poll=600.0), draining=True),
        replace(WELL, loaded=False, children=()),
    ],
)
def test_what_it_does_not(view):
    assert not_live(view) == []


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (replace(WELL, draining=True), "draining"),
        (replace(WELL, loaded=False), "loading"),
        (replace(WELL, children=()), "no process reads"),
        (replace(WELL, redis_age=20.0), "Redis has not answered"),
    ],
)
def test_not_ready(view, reason):
    [told] = not_ready(view)
    assert reason in told
