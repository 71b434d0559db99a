"""The judge of the chaos runs: what two executions of an event are, where Redis lost everything in between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.chaos.events import Event
from tests.chaos.judge import Judge
from tests.chaos.world import Epoch

pytestmark = pytest.mark.unit

FLUSHED = Epoch(0.0, asked=100.0, ended=100.02)


@pytest.mark.parametrize(
    ("began", "sent", "broken"),
    [(99.9, [90.0, 100.2], 0), (100.05, [90.0, 100.2], 0), (100.3, [90.0, 100.2], 1), (100.05, [100.01], 1)],
    ids=["begun before", "its first line came later", "begun when it was sent again", "sent after it only"],
)
def test_what_was_begun_before_a_flush_may_run_beside_what_is_begun_after_it(
    began: float, sent: list[float], broken: int
) -> None:
    event = Event("e", "mixed", "ok")
    lines = [
        {"what": what, "event": "e", "pid": pid, "at": at}
        for pid, what, at in ((1, "start", began), (2, "start", 100.5), (1, "end", 101.0), (2, "end", 101.2))
    ]
    world = SimpleNamespace(
        pods=[SimpleNamespace(name="w", names={1: "one", 2: "two"})],
        epochs=[FLUSHED, Epoch(100.03)],
        producer=SimpleNamespace(sent={"e": sent}),
        leases={},
        ledger=lambda: lines,
    )
    judge = Judge(cast(Any, world), [event])
    judge._overlaps()
    assert len(judge.verdict.broken) == broken


@pytest.mark.parametrize(
    ("died", "double", "overlaps"),
    [
        ({}, 1, 0),
        ({"mixed/one": 99.0}, 0, 1),
        ({"mixed/one": 101.5}, 1, 0),
        ({"mixed/two": 99.0}, 0, 1),
        ({"mixed/two": 100.6}, 1, 0),
    ],
    ids=["both hold", "the first had lost it", "it lost it later", "the second had lost it", "it lost it as it ran"],
)
def test_two_at_once_are_no_breach_if_one_had_lost_its_lease(
    died: dict[str, float], double: int, overlaps: int
) -> None:
    lines = [
        {"what": what, "event": "e", "pid": pid, "at": at}
        for pid, what, at in ((1, "start", 100.0), (2, "start", 100.5), (2, "end", 101.0), (1, "end", 101.2))
    ]
    world = SimpleNamespace(
        pods=[SimpleNamespace(name="w", names={1: "one", 2: "two"})],
        epochs=[],
        producer=SimpleNamespace(sent={"e": [90.0]}),
        leases={who: [(at, -at)] for who, at in died.items()},
        ledger=lambda: lines,
    )
    judge = Judge(cast(Any, world), [Event("e", "mixed", "ok")])
    judge._overlaps()
    assert len(judge.verdict.broken) == judge.verdict.figures["double executions by lease holders"] == double
    assert judge.verdict.figures["overlaps with a worker that had lost its lease"] == overlaps
