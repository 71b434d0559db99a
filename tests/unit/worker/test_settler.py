"""Outcomes that Redis refuses for good, whatever it is told: each has an end, and its slot is free again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.broker.delivery import Delivery, Grant, Verdict
from runtime.broker.gate import Claim
from runtime.broker.keys import RouteKeys
from runtime.broker.outcome import Completed, DeadLettered, Outcome, Released, Retried, RunMeta, Settled
from runtime.broker.settlement import OutcomeRefused
from runtime.errors import BrokerError, BrokerUnavailable
from runtime.registry.snapshot import Route
from runtime.settings import Settings
from runtime.worker import settler
from runtime.worker.settler import Settler
from runtime.worker.work import Work
from shared_models.dead_letter import ErrorInfo
from shared_models.envelope import EventEnvelope
from shared_models.result import RunResult
from shared_models.route import RouteSpec

KEYS = RouteKeys("flows:a", "headrace")
ERROR = ErrorInfo(code="run_failed", message="it broke")
RESULT = RunResult(text="paid for")


class Small:
    """A Redis behind limits of its own: it takes what ``takes`` says it does, of an outcome or of what holds one."""

    def __init__(self, takes: Any) -> None:
        self.takes = takes
        self.written: list[tuple[str, Outcome | None, dict[str, Any]]] = []
        self.put_off: list[str] = []
        self.settlement = self.leases = self.streams = self

    async def settle(self, claim: Claim, outcome: Outcome, **more: Any) -> Settled:
        return self._write("settle", outcome, more)

    async def hold(self, claim: Claim, outcome: Outcome | None, **more: Any) -> Settled:
        return self._write("hold", outcome, more)

    async def finish(self, claim: Claim) -> Settled:
        raise OutcomeRefused(BrokerError("its target is not a stream"), RESULT)

    async def block(self, keys: RouteKeys, **more: Any) -> bool:
        raise BrokerError("ERR max request size exceeded")

    async def unstarted(self, keys: RouteKeys, *, ids: list[str], **more: Any) -> int:
        self.put_off += ids
        return 1

    def _write(self, step: str, outcome: Outcome | None, more: dict[str, Any]) -> Settled:
        if not self.takes(step, outcome):
            raise BrokerError("ERR max request size exceeded")
        self.written.append((step, outcome, more))
        return Settled.DONE


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(*_: Any) -> None:
        pass

    monkeypatch.setattr(settler, "backoff", at_once)


def work(event: str = "B", entry: str = "2-0") -> Work:
    lane = SimpleNamespace(read=frozenset(), keys=KEYS, look_at=lambda at: None, blocked=False)
    envelope = EventEnvelope(
        event_id=event, root_id=event, event_type="x", source="x", idempotency_key="k", timestamp=1, payload={},
        tenant_id="tenant-B", reply_to="replies:B",
    )  # fmt: skip
    return Work(
        flight=SimpleNamespace(abort=None, lane=lane),
        delivery=Delivery(entry, ()),
        active=SimpleNamespace(route=Route("a", RouteSpec(dead_letter="dead"), "v", "", {}, Path("a.json"))),
        claim=Claim(KEYS, "w", entry, "w.1", "k", event, 1.0),
        meta=RunMeta(route="a", version="v", root_id=event, tenant_id="tenant-B", session_id="s", key="k"),
        envelope=envelope,
        poison=None,
    )


async def settled(takes: Any, outcome: Outcome, given: Work | None = None) -> Small:
    redis = Small(takes)
    await Settler(redis, Settings()).settle(given or work(), outcome)
    return redis


def holds_result(outcome: Outcome | None) -> bool:
    return getattr(outcome, "result", None) is not None


async def test_a_result_that_a_limit_of_another_name_refuses_is_dropped() -> None:
    redis = await settled(lambda step, outcome: not holds_result(outcome), Completed(RESULT))
    ((step, outcome, _),) = redis.written
    assert (step, type(outcome), redis.put_off) == ("settle", DeadLettered, [])


async def test_an_outcome_that_no_target_takes_is_kept_whole() -> None:
    redis = await settled(lambda step, outcome: step == "hold", Completed(RESULT))
    assert [(step, outcome) for step, outcome, _ in redis.written] == [("hold", Completed(RESULT))]


async def test_what_cannot_be_kept_whole_is_kept_without_its_result() -> None:
    redis = await settled(lambda step, outcome: step == "hold" and not holds_result(outcome), Completed(RESULT))
    ((step, outcome, _),) = redis.written
    assert (step, type(outcome), redis.put_off) == ("hold", DeadLettered, [])


@pytest.mark.parametrize(
    "outcome", [Completed(RESULT), DeadLettered(ERROR), Retried(1.0, ERROR), Released(), Released(ERROR)]
)
async def test_an_outcome_of_which_nothing_is_taken_puts_its_entry_off(outcome: Outcome) -> None:
    redis = await settled(lambda step, outcome: False, outcome)
    assert (redis.written, redis.put_off) == ([], ["2-0"])


async def test_a_route_that_cannot_be_blocked_takes_its_entry_again_later() -> None:
    redis = await settled(lambda step, outcome: True, Released(ERROR))
    ((_, outcome, _),) = redis.written
    assert isinstance(outcome, Released)
    assert outcome.delay == settler.REFUSED_AGAIN


async def test_an_outage_gives_nothing_up() -> None:
    left = 20

    def takes(step: str, outcome: Outcome) -> bool:
        nonlocal left
        left -= 1
        if left:
            raise BrokerUnavailable("away")
        return True

    redis = await settled(takes, Completed(RESULT))
    assert [outcome for _, outcome, _ in redis.written] == [Completed(RESULT)]


@pytest.mark.parametrize(("event", "told"), [("A", []), ("B", ["replies:B"])])
async def test_of_another_events_dead_letter_the_sender_of_this_one_hears_nothing(event: str, told: list[str]) -> None:
    """A dead holder of the same key has staged its outcome, which is refused; the entry in hand is another's."""
    redis = Small(lambda step, outcome: True)
    grant = Grant(Verdict.STAGED, "w.0", attempts=1, event_id=event, entry_id="1-0")
    await Settler(redis, Settings()).finish(work(), grant)
    ((_, outcome, more),) = redis.written
    assert isinstance(outcome, DeadLettered)
    assert [p.stream for p in outcome.publications] == told
    meta = more["meta"]
    assert (meta.root_id, meta.route, meta.key) == (event, "a", "k")
    assert (meta.tenant_id, meta.session_id) == ((None, None) if event == "A" else ("tenant-B", "s"))
