"""Asking the gate: a permission that comes too late is asked for again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.broker.delivery import Grant, Verdict
from runtime.errors import BrokerUnavailable
from runtime.worker import admission
from runtime.worker.admission import ASKED, STALE, Admission

LEASE = 15.0
IN_TIME, TOO_LATE = STALE * LEASE - 0.1, STALE * LEASE + 0.1


class Gate:
    """Answers, each time so many seconds after it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: tuple[float, Verdict | Exception]) -> None:
        self.now = 1000.0
        self.answers = list(answers)
        self.claims: list[Any] = []
        monkeypatch.setattr(admission, "boot_time", lambda: self.now)

    async def begin(self, claim: Any, **_: Any) -> Grant:
        self.claims.append(claim)
        seconds, answer = self.answers.pop(0)
        self.now += seconds
        if isinstance(answer, Exception):
            raise answer
        return Grant(answer, token="token", attempts=1)


class Lease:
    """Tells whether it was asked for."""

    def __init__(self) -> None:
        self.renewals = 0

    async def renew_now(self) -> bool:
        self.renewals += 1
        return False


class Settler:
    async def again(self, *_: Any) -> bool:
        return True


async def admit(gate: Gate, lease: Lease | None = None) -> Grant | None:
    """What becomes of a delivery."""
    made = Admission(
        cast(Any, SimpleNamespace(gate=gate)),
        cast(Any, lease or Lease()),
        cast(Any, Settler()),
        worker="w",
        lease_seconds=LEASE,
        alone=False,
        new_token=lambda _: "another",
        ask_alone=None,
    )
    route = SimpleNamespace(name="r", spec=SimpleNamespace(retry=SimpleNamespace(max_attempts=3)))
    flight = SimpleNamespace(abort=None, lane=SimpleNamespace(flights={"1-0": "token"}, blocked=False, name="r"))
    work = SimpleNamespace(
        flight=flight,
        claim=SimpleNamespace(event_id="e", token="token", entry_id="1-0"),
        active=SimpleNamespace(route=route),
        meta={},
        delivery=SimpleNamespace(probe=False, entry_id="1-0"),
        poison=None,
    )
    return await made.admit(cast(Any, work))


async def test_a_permission_in_time_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, (IN_TIME, Verdict.RUN))
    grant = await admit(gate)
    assert grant is not None and grant.verdict is Verdict.RUN and len(gate.claims) == 1


async def test_one_that_is_late_is_asked_for_again_with_the_same_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, (TOO_LATE, Verdict.RUN), (0.0, Verdict.RUN))
    grant = await admit(gate)
    assert grant is not None and grant.verdict is Verdict.RUN
    assert len(gate.claims) == 2 and gate.claims[0] is gate.claims[1]


async def test_what_another_runs_by_then_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, (TOO_LATE, Verdict.RUN), (0.0, Verdict.NOT_MINE))
    assert await admit(gate) is None


async def test_a_worker_that_was_declared_dead_by_then_does_not_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, (TOO_LATE, Verdict.RUN), (0.0, Verdict.NO_LEASE), (0.0, Verdict.NOT_MINE))
    lease = Lease()
    assert await admit(gate, lease) is None
    assert lease.renewals == 1 and len(gate.claims) == 3


async def test_an_answer_that_is_always_late_is_taken_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Redis is that slow, nothing would ever run."""
    gate = Gate(monkeypatch, *[(TOO_LATE, Verdict.RUN)] * ASKED)
    grant = await admit(gate)
    assert grant is not None and grant.verdict is Verdict.RUN and len(gate.claims) == ASKED


async def test_an_answer_that_does_not_come_is_asked_for_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = BrokerUnavailable("away")
    gate = Gate(monkeypatch, (TOO_LATE, gone), (IN_TIME, Verdict.RUN))
    grant = await admit(gate)
    assert grant is not None and len(gate.claims) == 2


async def test_what_does_not_run_need_not_be_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, (TOO_LATE, Verdict.ENDED))
    assert await admit(gate) is None and len(gate.claims) == 1
