"""Outcomes whose targets lie in other slots: staged, published, recorded. One server plays the cluster here."""

from __future__ import annotations

import pytest

from runtime.broker.client import Broker
from runtime.broker.delivery import Verdict
from runtime.broker.outcome import Completed, DeadLettered, Publication, Settled
from runtime.broker.settlement import OutcomeRefused
from runtime.errors import BrokerUnavailable, PublishRefused
from shared_models.chat import ChatCommit, ChatOp
from shared_models.result import RunResult, RunStatus
from tests.support.hand import (
    DEAD,
    ERROR,
    KEYS,
    RESULTS,
    STREAM,
    Hand,
    Try,
    entries,
    gate_of,
    raw,
    run_of,
    send,
)

OTHER = "flows:other"


@pytest.fixture
def apart(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Every stream lies in a slot of its own."""
    monkeypatch.setattr(broker.connection, "together", lambda key, other: key == other)
    return broker


def outcome(text: str = "done", *, keep: int | None = None) -> Completed:
    told = tuple(Publication(s, f"{s}>", (("event_id", f"{s}>"), ("n", "1")), keep) for s in (RESULTS, OTHER, STREAM))
    return Completed(RunResult(text=text), told)


async def one(broker: Broker, event: str = "e1", worker: str = "w1", *, key: str | None = None) -> tuple[Hand, Try]:
    hand = await Hand.ready(broker, worker)
    await send(broker, event)
    return hand, await hand.begin(await hand.one(), key=key)


class Crash(BaseException):
    """The process ends here."""


def crash_after(broker: Broker, monkeypatch: pytest.MonkeyPatch, scripts: int, error: BaseException) -> None:
    """Let so many scripts run, then none."""
    run, left = broker.connection.run, [scripts]

    async def counted(call):
        if left[0] == 0:
            raise error
        left[0] -= 1
        return await run(call)

    monkeypatch.setattr(broker.connection, "run", counted)


async def test_what_lies_in_other_slots_is_published_once_and_the_rest_in_one_write(apart: Broker) -> None:
    hand, attempt = await one(apart)
    chat = ChatCommit(session="s", ops=(ChatOp(op="append", message={"id": "m1", "text": "hi"}),))
    done = Completed(outcome().result, outcome().publications, (chat,))
    assert await hand.settle(attempt, done) is Settled.DONE
    assert await hand.settle(attempt, done) is Settled.ALREADY
    for stream in (RESULTS, OTHER, STREAM):
        assert [e[b"event_id"].decode() for e in await entries(apart, stream)] == [f"{stream}>"]
    record = await run_of(apart, "e1")
    assert (record.status, record.result and record.result.text) == (RunStatus.COMPLETED, "done")
    assert [p.stream for p in record.published] == [RESULTS, OTHER, STREAM]
    assert await apart.chat.load(KEYS, tenant=None, session="s") == [{"id": "m1", "text": "hi"}]
    assert "outcome" not in await gate_of(apart, "e1")


@pytest.mark.parametrize("scripts", [1, 2, 3])
async def test_a_repeat_goes_on_where_the_answer_was_lost(
    apart: Broker, monkeypatch: pytest.MonkeyPatch, scripts: int
) -> None:
    hand, attempt = await one(apart)
    with monkeypatch.context() as patch:
        crash_after(apart, patch, scripts, BrokerUnavailable("gone"))
        with pytest.raises(BrokerUnavailable):
            await hand.settle(attempt, outcome())
    assert await hand.settle(attempt, outcome()) is Settled.DONE
    assert [await raw(apart, "XLEN", stream) for stream in (RESULTS, OTHER, STREAM)] == [1, 1, 1]


@pytest.mark.parametrize("scripts", [1, 2, 3])
async def test_the_next_holder_publishes_and_does_not_run(
    apart: Broker, monkeypatch: pytest.MonkeyPatch, scripts: int
) -> None:
    hand, attempt = await one(apart)
    with monkeypatch.context() as patch:
        crash_after(apart, patch, scripts, Crash())
        with pytest.raises(Crash):
            await hand.settle(attempt, outcome("kept"))
    await hand.die()
    two = await Hand.ready(apart, "w2")
    again = await two.begin(await two.one())
    assert (again.grant.verdict, again.grant.event_id) == (Verdict.STAGED, "e1")
    assert await hand.settle(attempt, outcome()) is Settled.LOST
    assert await apart.settlement.finish(again.claim) is Settled.DONE
    assert [await raw(apart, "XLEN", stream) for stream in (RESULTS, OTHER, STREAM)] == [1, 1, 1]
    record = await run_of(apart, "e1")
    assert (record.status, record.result and record.result.text, record.attempts) == (RunStatus.COMPLETED, "kept", 1)


async def test_c25_another_event_of_the_key_publishes_what_a_deleted_one_has_staged(
    apart: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand, attempt = await one(apart, key="k")
    with monkeypatch.context() as patch:
        crash_after(apart, patch, 1, Crash())
        with pytest.raises(Crash):
            await hand.settle(attempt, outcome())
    await hand.die()
    await raw(apart, "XDEL", STREAM, attempt.claim.entry_id)
    two = await Hand.ready(apart, "w2")
    await send(apart, "e2")
    delivery = next(d for d in await two.fetch() if d.fields[0][1] == b"e2")
    again = await two.begin(delivery, key="k")
    assert (again.grant.verdict, again.grant.event_id) == (Verdict.STAGED, "e1")
    from dataclasses import replace

    claim = replace(again.claim, event_id="e1", entry_id=again.grant.entry_id)
    assert await apart.settlement.finish(claim) is Settled.DONE
    assert (await run_of(apart, "e1")).status is RunStatus.COMPLETED
    last = (await two.begin(delivery, key="k")).grant
    assert (last.verdict, last.event_id) == (Verdict.ENDED, "e1")


async def test_a_dead_letter_of_another_slot_is_kept_once_byte_for_byte(
    apart: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = await Hand.ready(apart)
    await raw(apart, "XADD", STREAM, "*", "event_id", "e1", b"\xff\x00", b"\xfe")
    attempt = await hand.begin(await hand.one())
    told = Publication(OTHER, "e1>", (("event_id", "e1>"),))
    buried = DeadLettered(ERROR, None, (told,))
    with monkeypatch.context() as patch:
        crash_after(apart, patch, 2, Crash())
        with pytest.raises(Crash):
            await hand.settle(attempt, buried)
    await hand.die()
    two = await Hand.ready(apart, "w2")
    again = await two.begin(await two.one())
    assert await apart.settlement.finish(again.claim) is Settled.DONE
    (letter,) = await apart.dead_letters.list(DEAD)
    assert await apart.dead_letters.fields(DEAD, letter.id) == ((b"event_id", b"e1"), (b"\xff\x00", b"\xfe"))
    assert letter.first_at and letter.died_at >= letter.first_at
    record = await run_of(apart, "e1")
    assert record.status is RunStatus.DEAD_LETTERED
    assert record.dead_letter and record.dead_letter.id == letter.id
    assert await raw(apart, "XLEN", OTHER) == 1


async def test_a_cancelled_event_gets_no_dead_letter(apart: Broker) -> None:
    hand, attempt = await one(apart)
    assert (await apart.runs.cancel(KEYS, "e1")).name == "ASKED"
    assert await hand.bury(attempt) is Settled.CANCELLED
    assert await raw(apart, "EXISTS", DEAD, STREAM) in (0, 1)
    assert (await run_of(apart, "e1")).status is RunStatus.CANCELLED
    assert await raw(apart, "XLEN", DEAD) == 0


async def test_a_target_that_is_no_stream_is_refused_before_anything_is_written(apart: Broker) -> None:
    hand, attempt = await one(apart)
    await raw(apart, "SET", OTHER, "x")
    with pytest.raises(PublishRefused) as refused:
        await hand.settle(attempt, outcome())
    assert refused.value.target == OTHER
    assert (await gate_of(apart, "e1"))["state"] == "running"
    assert await raw(apart, "XLEN", RESULTS) == 0
    assert await hand.bury(attempt) is Settled.DONE


async def test_a_target_that_is_no_stream_any_more_ends_in_a_dead_letter_with_the_result(
    apart: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand, attempt = await one(apart)
    with monkeypatch.context() as patch:
        crash_after(apart, patch, 1, Crash())
        with pytest.raises(Crash):
            await hand.settle(attempt, outcome("paid for"))
    await hand.die()
    await raw(apart, "SET", OTHER, "x")
    two = await Hand.ready(apart, "w2")
    again = await two.begin(await two.one())
    with pytest.raises(OutcomeRefused) as refused:
        await apart.settlement.finish(again.claim)
    assert refused.value.result == RunResult(text="paid for")
    assert await two.settle(again, DeadLettered(ERROR, refused.value.result)) is Settled.DONE
    assert (await run_of(apart, "e1")).result == RunResult(text="paid for")


async def test_a_requeued_event_publishes_again(apart: Broker) -> None:
    """A new generation's outcome is another outcome, though its ids are the same."""
    hand, attempt = await one(apart)
    told = (Publication(OTHER, "e1>", (("event_id", "e1>"),)),)
    await hand.settle(attempt, DeadLettered(ERROR, None, told))
    (letter,) = await apart.dead_letters.list(DEAD)
    first = await apart.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter.id)
    assert first.entry_id
    assert await raw(apart, "XLEN", DEAD) == 0
    assert (await apart.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter.id)).entry_id is None
    again = await hand.begin(await hand.one())
    assert (again.grant.verdict, again.grant.attempts) == (Verdict.RUN, 1)
    await hand.settle(again, Completed(RunResult(text="x"), told))
    assert await raw(apart, "XLEN", OTHER) == 2


async def test_a_requeue_whose_last_step_was_lost_adds_no_second_entry(
    apart: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand, attempt = await one(apart)
    await hand.bury(attempt)
    (letter,) = await apart.dead_letters.list(DEAD)

    async def lost(*_: object) -> int:
        raise BrokerUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(apart.dead_letters, "drop", lost)
        with pytest.raises(BrokerUnavailable):
            await apart.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter.id)
    assert (await apart.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter.id)).entry_id
    assert [await raw(apart, "XLEN", stream) for stream in (STREAM, DEAD)] == [1, 0]
    assert (await gate_of(apart, "e1"))["gen"] == "2"


async def test_streams_that_nobody_reads_are_trimmed_there_too(apart: Broker) -> None:
    hand = await Hand.ready(apart)
    for n in range(300):
        await raw(apart, "XADD", RESULTS, "*", "n", n)
    await send(apart, "e1")
    await hand.settle(await hand.begin(await hand.one()), outcome(keep=10))
    assert await raw(apart, "XLEN", RESULTS) < 200
