"""suspend and resume: a run that waits for a person, and the one decision that it takes."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.broker.client import Broker
from runtime.broker.delivery import Verdict
from runtime.broker.listing import RunFilter
from runtime.broker.outcome import Settled
from runtime.broker.runs import Cancelled
from runtime.errors import AlreadyDecided, DecisionInvalid, NotWaiting, PauseOver, RunNotFound
from shared_models.result import Decision, RunEventType, RunStatus
from tests.support.hand import (
    DEAD,
    KEYS,
    STREAM,
    Hand,
    Try,
    gate_of,
    make_due,
    now,
    parked,
    question,
    raw,
    run_of,
    send,
    sweep,
)

YES = Decision(action_id="approve", values={"note": "é"})
NO = Decision(action_id="reject")


async def waiting(broker: Broker, event: str = "e1", **more: Any) -> tuple[Hand, Try]:
    """A run that waits."""
    hand = await Hand.ready(broker)
    await send(broker, event)
    attempt = await hand.begin(await hand.one())
    assert await hand.suspend(attempt, **more) is Settled.DONE
    return hand, attempt


async def test_a_run_that_waits_shows_what_it_asks_and_costs_nothing(broker: Broker) -> None:
    _, attempt = await waiting(broker, wait=50.0)
    assert await parked(broker) == [attempt.claim.entry_id]
    record = await run_of(broker, "e1")
    assert (record.status, record.attempts, record.status.final) == (RunStatus.WAITING, 0, False)
    assert record.pause is not None
    assert record.pause == question().model_copy(update={"timeout_at": record.due_at})
    assert record.due_at is not None
    assert 40_000 < record.due_at - await now(broker) <= 50_000
    line = (await broker.runs.feed(KEYS, "e1"))[-1]
    assert (line.type, line.data["prompt"], line.data["allowed"]) == (
        RunEventType.WAITING,
        "May I?",
        ["approve", "reject"],
    )
    page = await broker.runs.page([KEYS], RunFilter(status=RunStatus.WAITING))
    assert [r.event_id for r in page.records] == ["e1"]
    assert await broker.gate.checkpoint(attempt.claim) == b"checkpoint of q:1"
    assert await raw(broker, "PTTL", KEYS.gate("e1")) > 50_000


async def test_a_decision_lets_it_go_on_at_once(broker: Broker) -> None:
    hand, first = await waiting(broker)
    assert await hand.fetch() == []
    record = await broker.pauses.resume(KEYS, "e1", YES)
    assert (record.status, record.pause, record.due_at) == (RunStatus.QUEUED, None, None)
    second = await hand.begin(await hand.one())
    assert (second.grant.verdict, second.grant.attempts, second.grant.pause) == (Verdict.RUN, 1, "q:1")
    assert Decision.model_validate_json(second.grant.decision) == YES
    assert await hand.again(second) == second.grant
    assert await broker.gate.checkpoint(second.claim) == b"checkpoint of q:1"
    assert await hand.suspend(first) is Settled.ALREADY
    assert await hand.complete(second) is Settled.DONE
    assert "checkpoint" not in await gate_of(broker, "e1")
    lines = [line.type for line in await broker.runs.feed(KEYS, "e1")]
    assert lines == [
        RunEventType.STARTED,
        RunEventType.WAITING,
        RunEventType.RESUMED,
        RunEventType.STARTED,
        RunEventType.COMPLETED,
    ]


async def test_suspending_again_after_a_lost_reply_is_already(broker: Broker) -> None:
    hand, attempt = await waiting(broker)
    before = await gate_of(broker, "e1")
    assert await hand.suspend(attempt) is Settled.ALREADY
    assert await gate_of(broker, "e1") == before


async def test_a_decision_is_taken_once_and_may_be_repeated(broker: Broker) -> None:
    hand, _ = await waiting(broker)
    await broker.pauses.resume(KEYS, "e1", YES)
    await broker.pauses.resume(KEYS, "e1", YES)
    await broker.pauses.resume(KEYS, "e1", YES, request_id="q:1")
    with pytest.raises(AlreadyDecided):
        await broker.pauses.resume(KEYS, "e1", NO)
    second = await hand.begin(await hand.one())
    await broker.pauses.resume(KEYS, "e1", YES)
    await hand.complete(second)
    await broker.pauses.resume(KEYS, "e1", YES)
    with pytest.raises(AlreadyDecided):
        await broker.pauses.resume(KEYS, "e1", NO)
    assert (await run_of(broker, "e1")).status is RunStatus.COMPLETED


async def test_what_is_refused(broker: Broker) -> None:
    with pytest.raises(RunNotFound):
        await broker.pauses.resume(KEYS, "nobody", YES)
    hand, _ = await waiting(broker)
    with pytest.raises(DecisionInvalid, match="approve, reject"):
        await broker.pauses.resume(KEYS, "e1", Decision(action_id="__expired__"))
    with pytest.raises(NotWaiting, match="q:1"):
        await broker.pauses.resume(KEYS, "e1", YES, request_id="q:0")
    await send(broker, "e2")
    other = await hand.begin(await hand.one())
    with pytest.raises(NotWaiting, match="running"):
        await broker.pauses.resume(KEYS, "e2", YES)
    await hand.complete(other)
    with pytest.raises(NotWaiting):
        await broker.pauses.resume(KEYS, "e2", YES)
    assert (await gate_of(broker, "e1"))["state"] == "waiting"


async def test_when_the_time_is_up_no_decision_is_taken(broker: Broker) -> None:
    hand, _ = await waiting(broker, wait=0.0)
    with pytest.raises(PauseOver):
        await broker.pauses.resume(KEYS, "e1", YES)
    second = await hand.begin(await hand.one())
    assert (second.grant.verdict, second.grant.pause, second.grant.decision) == (Verdict.RUN, "q:1", "")
    with pytest.raises(PauseOver):
        await broker.pauses.resume(KEYS, "e1", YES)
    await hand.release(second)
    with pytest.raises(PauseOver):
        await broker.pauses.resume(KEYS, "e1", YES)
    third = await hand.begin(await hand.one())
    assert (third.grant.pause, third.grant.decision) == ("q:1", "")


async def test_a_run_may_ask_several_times(broker: Broker) -> None:
    hand, _ = await waiting(broker)
    await broker.pauses.resume(KEYS, "e1", YES)
    second = await hand.begin(await hand.one())
    await hand.suspend(second, "q:2")
    record = await run_of(broker, "e1")
    assert record.pause is not None
    assert record.pause.request_id == "q:2"
    with pytest.raises(NotWaiting):
        await broker.pauses.resume(KEYS, "e1", YES, request_id="q:1")
    await broker.pauses.resume(KEYS, "e1", NO, request_id="q:2")
    third = await hand.begin(await hand.one())
    assert (third.grant.pause, Decision.model_validate_json(third.grant.decision)) == ("q:2", NO)
    assert await broker.gate.checkpoint(third.claim) == b"checkpoint of q:2"


async def test_a_failure_after_the_decision_is_charged_and_keeps_it(broker: Broker) -> None:
    hand, _ = await waiting(broker)
    await broker.pauses.resume(KEYS, "e1", YES)
    for attempts in (1, 2):
        again = await hand.begin(await hand.one())
        assert (again.grant.attempts, again.grant.pause) == (attempts, "q:1")
        assert Decision.model_validate_json(again.grant.decision) == YES
        await hand.retry(again)
        await make_due(broker)
    last = await hand.begin(await hand.one())
    await hand.bury(last)
    assert "checkpoint" not in await gate_of(broker, "e1")


async def test_a_death_after_the_decision_keeps_it(broker: Broker) -> None:
    hand, _ = await waiting(broker)
    await broker.pauses.resume(KEYS, "e1", YES)
    await hand.begin(await hand.one())
    other = await Hand.ready(broker, "w2")
    await hand.die()
    again = await other.begin(await other.one())
    assert (again.grant.verdict, again.grant.pause) == (Verdict.RUN, "q:1")
    assert Decision.model_validate_json(again.grant.decision) == YES


async def test_failures_before_the_pause_stay_charged(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.retry(await hand.begin(await hand.one()))
    await make_due(broker)
    await hand.suspend(await hand.begin(await hand.one()))
    assert (await run_of(broker, "e1")).attempts == 1
    await broker.pauses.resume(KEYS, "e1", YES)
    assert (await hand.begin(await hand.one())).grant.attempts == 2


async def test_cancelling_one_that_waits_ends_it(broker: Broker) -> None:
    await waiting(broker)
    assert await broker.runs.cancel(KEYS, "e1") is Cancelled.CANCELLED
    record = await run_of(broker, "e1")
    assert (record.status, record.pause) == (RunStatus.CANCELLED, None)
    assert await raw(broker, "XLEN", STREAM) == 0
    assert "checkpoint" not in await gate_of(broker, "e1")
    with pytest.raises(PauseOver):
        await broker.pauses.resume(KEYS, "e1", YES, request_id="q:1")


async def test_one_that_was_cancelled_while_it_ran_does_not_wait(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    attempt = await hand.begin(await hand.one())
    assert await broker.runs.cancel(KEYS, "e1") is Cancelled.ASKED
    assert await hand.suspend(attempt) is Settled.CANCELLED
    assert (await run_of(broker, "e1")).status is RunStatus.CANCELLED
    assert await raw(broker, "XLEN", STREAM) == 0
    assert await hand.suspend(attempt) is Settled.ALREADY


async def test_one_that_lost_its_token_does_not_suspend(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    attempt = await hand.begin(await hand.one())
    other = await Hand.ready(broker, "w2")
    await hand.die()
    await other.begin(await other.one())
    assert await hand.suspend(attempt) is Settled.LOST
    assert (await gate_of(broker, "e1"))["state"] == "running"


async def test_an_entry_that_is_gone_cannot_wait(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    attempt = await hand.begin(await hand.one())
    await raw(broker, "XDEL", STREAM, attempt.claim.entry_id)
    assert await hand.suspend(attempt) is Settled.ENTRY_GONE
    assert await hand.bury(attempt) is Settled.DONE


async def test_a_worker_that_ends_leaves_it_waiting(broker: Broker) -> None:
    hand, attempt = await waiting(broker)
    await hand.expire()
    await sweep(broker)
    await broker.recovery.audit(KEYS)
    assert await parked(broker) == [attempt.claim.entry_id]
    other = await Hand.ready(broker, "w2")
    assert await other.fetch() == []
    await broker.pauses.resume(KEYS, "e1", YES)
    assert (await other.begin(await other.one())).grant.pause == "q:1"


async def test_a_duplicate_waits_for_the_answer(broker: Broker) -> None:
    hand, _ = await waiting(broker)
    await send(broker, "e1")
    (again,) = await hand.fetch()
    assert (await hand.begin(again)).grant.verdict is Verdict.WAIT
    assert (await run_of(broker, "e1")).status is RunStatus.WAITING
    await broker.pauses.resume(KEYS, "e1", YES)
    await hand.complete(await hand.begin(await hand.one()))
    await make_due(broker)
    assert (await hand.begin(await hand.one())).grant.verdict is Verdict.ENDED


async def test_sent_again_in_place_of_a_deleted_entry_it_waits_on(broker: Broker) -> None:
    hand, attempt = await waiting(broker)
    await raw(broker, "XDEL", STREAM, attempt.claim.entry_id)
    await broker.recovery.audit(KEYS)
    await send(broker, "e1")
    assert (await hand.begin(await hand.one())).grant.verdict is Verdict.WAIT
    assert (await gate_of(broker, "e1"))["state"] == "waiting"
    await broker.pauses.resume(KEYS, "e1", YES)
    assert (await hand.begin(await hand.one())).grant.pause == "q:1"


async def test_a_requeued_dead_letter_begins_anew(broker: Broker) -> None:
    hand, _ = await waiting(broker, wait=0.0)
    await hand.bury(await hand.begin(await hand.one()))
    (letter,) = await broker.dead_letters.list(DEAD)
    await broker.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter.id)
    again = await hand.begin(await hand.one())
    assert (again.grant.verdict, again.grant.pause) == (Verdict.RUN, "")


async def test_another_event_of_the_key_begins_anew(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.suspend(await hand.begin(await hand.one(), key="k"))
    assert await broker.runs.cancel(KEYS, "e1") is Cancelled.CANCELLED
    await send(broker, "e2")
    again = await hand.begin(await hand.one(), key="k")
    assert (again.grant.verdict, again.grant.pause) == (Verdict.RUN, "")
    assert await hand.again(again) == again.grant
