"""complete, retry, release, dead_letter: the one write of an outcome, and what fences it."""

from __future__ import annotations

import json

import pytest

from runtime.broker.client import Broker
from runtime.broker.delivery import Delivery, Verdict
from runtime.broker.outcome import Completed, DeadLettered, Outcome, Publication, Released, Retried, Settled
from runtime.broker.settlement import OutcomeRefused
from runtime.errors import PublishRefused
from shared_models.dead_letter import ErrorInfo
from shared_models.result import Output, OutputKind, Published, RunEventType, RunResult, RunStatus
from tests.support.hand import (
    DEAD,
    ERROR,
    KEYS,
    RESULTS,
    STREAM,
    Hand,
    entries,
    gate_of,
    make_due,
    now,
    parked,
    raw,
    run_of,
    send,
)

RESULT = RunResult(
    text="hi",
    outputs=[Output(id="o", name="n", type="t", kind=OutputKind.DATA, data={"a": None, "b": [None, 1.5, "\ud800é"]})],
)
TOLD = Publication(RESULTS, "x1", (("event_id", "x1"), ("payload", '{"é": "\u0000"}')))
OUTCOMES: list[Outcome] = [Completed(RESULT, (TOLD,)), Retried(0.0, ERROR), Released(), DeadLettered(ERROR)]


async def started(broker: Broker, event: str = "e1", name: str = "w1"):
    hand = await Hand.ready(broker, name)
    await send(broker, event)
    return hand, await hand.begin(await hand.one())


async def test_complete_does_all_of_it_at_once(broker: Broker) -> None:
    hand, attempt = await started(broker)
    assert await hand.settle(attempt, Completed(RESULT, (TOLD, TOLD))) is Settled.DONE
    assert await raw(broker, "XLEN", STREAM) == 0
    assert await broker.reader.pending(KEYS, worker="w1") == []
    assert await entries(broker, RESULTS) == [{b"event_id": b"x1", b"payload": '{"é": "\u0000"}'.encode()}] * 2
    record = await run_of(broker, "e1")
    assert (record.status, record.attempts, record.result) == (RunStatus.COMPLETED, 1, RESULT)
    assert record.published == [Published(stream=RESULTS, event_id="x1")] * 2
    assert record.ended_at is not None
    lines = await broker.runs.feed(KEYS, "e1")
    assert [line.type for line in lines] == [RunEventType.STARTED, RunEventType.COMPLETED]
    gate = await gate_of(broker, "e1")
    assert (gate["state"], gate["o:w1.1"]) == ("completed", "completed")
    assert 0 < await raw(broker, "PTTL", KEYS.gate("e1")) <= 86_400_000
    assert 0 < await raw(broker, "PTTL", KEYS.run("e1")) <= 7 * 86_400_000


async def test_retry_parks_the_entry_where_it_is(broker: Broker) -> None:
    hand, attempt = await started(broker)
    assert await hand.settle(attempt, Retried(50.0, ERROR)) is Settled.DONE
    assert await parked(broker) == [attempt.claim.entry_id]
    due = float(await raw(broker, "ZSCORE", KEYS.due, attempt.claim.entry_id))
    assert 40_000 < due - await now(broker) <= 50_000
    record = await run_of(broker, "e1")
    assert (record.status, record.attempts, record.last_error) == (RunStatus.DELAYED, 1, "it broke")
    assert record.due_at == due
    line = (await broker.runs.feed(KEYS, "e1"))[-1]
    assert (line.type, line.data["error"], line.data["due_at"]) == (RunEventType.RETRY, "it broke", due)
    await make_due(broker)
    second = await hand.begin(await hand.one())
    assert (second.grant.verdict, second.grant.attempts) == (Verdict.RUN, 2)
    assert await hand.complete(second) is Settled.DONE
    record = await run_of(broker, "e1")
    assert (record.status, record.last_error, record.due_at) == (RunStatus.COMPLETED, None, None)


async def test_release_gives_the_attempt_back(broker: Broker) -> None:
    hand, attempt = await started(broker)
    assert await hand.settle(attempt, Released(ErrorInfo(code="drain", message="ends"))) is Settled.DONE
    record = await run_of(broker, "e1")
    assert (record.status, record.attempts, record.last_error) == (RunStatus.QUEUED, 0, "ends")
    second = await hand.begin(await hand.one())
    assert second.grant.attempts == 1
    await hand.settle(second, Released(None, 100.0))
    assert await hand.fetch() == []
    assert (await run_of(broker, "e1")).due_at is not None


async def test_dead_letter_keeps_the_fields_byte_for_byte(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    pairs = ((b"event_id", b"e1"), (b"f:x\xff", bytes(range(256))), (b"a", b"1"), (b"a", b"2"), (b"dl_code", b"mine"))
    await raw(broker, "XADD", STREAM, "*", *[part for pair in pairs for part in pair])
    attempt = await hand.begin(await hand.one())
    assert await hand.settle(attempt, DeadLettered(ERROR)) is Settled.DONE
    assert await raw(broker, "XLEN", STREAM) == 0
    (letter,) = await broker.dead_letters.list(DEAD)
    assert (letter.route, letter.stream, letter.entry_id) == ("a", STREAM, attempt.claim.entry_id)
    assert (letter.event_id, letter.root_id, letter.code, letter.reason) == ("e1", "e1", "run_failed", "it broke")
    assert (letter.attempts, letter.error, letter.version, letter.worker) == (1, ERROR, "v1", "w1")
    assert letter.first_at is not None
    assert letter.first_at <= letter.died_at
    assert letter.fields["dl_code"] == "mine"
    assert await broker.dead_letters.fields(DEAD, letter.id) == pairs
    record = await run_of(broker, "e1")
    assert record.status is RunStatus.DEAD_LETTERED
    assert record.dead_letter is not None
    assert (record.dead_letter.id, record.dead_letter.component_id) == (letter.id, "c-1")
    assert (record.dead_letter.attempts, record.dead_letter.reason) == (1, "it broke")
    line = (await broker.runs.feed(KEYS, "e1"))[-1]
    assert (line.type, line.data["dead_letter_id"]) == (RunEventType.DEAD_LETTERED, letter.id)


async def test_dead_letter_of_an_entry_with_more_fields_than_a_script_takes(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    pairs = [(b"event_id", b"e1"), *[(b"n%d" % n, b"\xff%d" % n) for n in range(6000)]]
    await raw(broker, "XADD", STREAM, "*", *[part for pair in pairs for part in pair])
    await hand.bury(await hand.begin(await hand.one()))
    (letter,) = await broker.dead_letters.list(DEAD)
    assert await broker.dead_letters.fields(DEAD, letter.id) == tuple(pairs)


async def test_dead_letter_tells_a_reply_target_and_keeps_a_result(broker: Broker) -> None:
    hand, attempt = await started(broker)
    told = Publication("replies", "r1", (("event_id", "r1"),))
    assert await hand.settle(attempt, DeadLettered(ERROR, RESULT, (told,))) is Settled.DONE
    assert await entries(broker, "replies") == [{b"event_id": b"r1"}]
    record = await run_of(broker, "e1")
    assert (record.status, record.result) == (RunStatus.DEAD_LETTERED, RESULT)


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: type(o).__name__)
async def test_repeated_after_a_lost_reply_is_already(broker: Broker, outcome: Outcome) -> None:
    hand, attempt = await started(broker)
    assert await hand.settle(attempt, outcome) is Settled.DONE
    before = [await raw(broker, "XLEN", name) for name in (STREAM, RESULTS, DEAD)], await gate_of(broker, "e1")
    assert await hand.settle(attempt, outcome) is Settled.ALREADY
    assert (
        [await raw(broker, "XLEN", name) for name in (STREAM, RESULTS, DEAD)],
        await gate_of(broker, "e1"),
    ) == before


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: type(o).__name__)
async def test_who_lost_it_writes_nothing(broker: Broker, outcome: Outcome) -> None:
    one, attempt = await started(broker)
    await one.die()
    two = await Hand.ready(broker, "w2")
    other = await two.begin(await two.one())
    before = await gate_of(broker, "e1")
    assert await one.settle(attempt, outcome) is Settled.LOST
    assert await gate_of(broker, "e1") == before
    assert await broker.reader.pending(KEYS, worker="w2") == [attempt.claim.entry_id]
    assert await two.complete(other) is Settled.DONE
    assert await one.settle(attempt, outcome) is Settled.LOST


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: type(o).__name__)
async def test_dead_but_nobody_has_begun_since_still_counts(broker: Broker, outcome: Outcome) -> None:
    """It saves a run; the token decides."""
    hand, attempt = await started(broker)
    await hand.die()
    assert await hand.settle(attempt, outcome) is Settled.DONE


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("remade", [False, True])
async def test_without_the_group(broker: Broker, outcome: Outcome, remade: bool) -> None:
    """The entry is in the stream; what the gate says decides when it is delivered anew."""
    hand, attempt = await started(broker)
    await raw(broker, "XGROUP", "DESTROY", STREAM, "headrace")
    if remade:
        await broker.streams.ensure_group(KEYS)
    assert await hand.settle(attempt, outcome) is Settled.DONE
    await broker.streams.ensure_group(KEYS)
    gone = isinstance(outcome, Completed | DeadLettered)
    assert await raw(broker, "XLEN", STREAM) == (0 if gone else 1)
    found = {d.entry_id for d in await hand.fetch()}
    assert found == (set() if gone else {attempt.claim.entry_id})


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: type(o).__name__)
async def test_acknowledged_by_somebody_else(broker: Broker, outcome: Outcome) -> None:
    """A retry or a release takes the entry back; nothing is stranded."""
    hand, attempt = await started(broker)
    await raw(broker, "XACK", STREAM, "headrace", attempt.claim.entry_id)
    assert await hand.settle(attempt, outcome) is Settled.DONE
    if not isinstance(outcome, Completed | DeadLettered):
        assert await parked(broker) == [attempt.claim.entry_id]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: type(o).__name__)
async def test_the_entry_is_gone(broker: Broker, outcome: Outcome) -> None:
    hand, attempt = await started(broker)
    await raw(broker, "XDEL", STREAM, attempt.claim.entry_id)
    if isinstance(outcome, Completed | DeadLettered):
        assert await hand.settle(attempt, outcome) is Settled.DONE
        return
    assert await hand.settle(attempt, outcome) is Settled.ENTRY_GONE
    assert await hand.bury(attempt) is Settled.DONE
    assert (await run_of(broker, "e1")).status is RunStatus.DEAD_LETTERED


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: type(o).__name__)
async def test_an_evicted_gate_leaves_it_to_the_pending_list(broker: Broker, outcome: Outcome) -> None:
    one, attempt = await started(broker)
    await raw(broker, "DEL", KEYS.gate("e1"))
    assert await one.settle(attempt, outcome) is Settled.DONE
    assert await one.settle(attempt, outcome) is Settled.ALREADY


async def test_an_evicted_gate_of_an_entry_that_another_holds_is_lost(broker: Broker) -> None:
    one, attempt = await started(broker)
    await one.die()
    two = await Hand.ready(broker, "w2")
    await two.fetch()
    await raw(broker, "DEL", KEYS.gate("e1"))
    assert await one.complete(attempt) is Settled.LOST


async def test_a_target_of_the_wrong_type_refuses_the_whole(broker: Broker) -> None:
    """C22: an error in mid-script does not roll back."""
    hand, attempt = await started(broker)
    await raw(broker, "SET", "bad", "x")
    bad = Publication("bad", "b1", (("event_id", "b1"),))
    before = await gate_of(broker, "e1")
    with pytest.raises(PublishRefused) as refused:
        await hand.settle(attempt, Completed(RESULT, (TOLD, bad)))
    assert refused.value.target == "bad"
    assert await gate_of(broker, "e1") == before
    assert await raw(broker, "XLEN", RESULTS) == 0
    assert await broker.reader.pending(KEYS, worker="w1") == [attempt.claim.entry_id]
    assert (await run_of(broker, "e1")).status is RunStatus.RUNNING
    with pytest.raises(PublishRefused):
        await hand.settle(attempt, DeadLettered(ERROR, RESULT, (bad,)))
    await raw(broker, "SET", DEAD, "x")
    with pytest.raises(PublishRefused) as refused:
        await hand.settle(attempt, DeadLettered(ERROR, RESULT))
    assert refused.value.target == DEAD
    await raw(broker, "DEL", DEAD)
    assert await hand.settle(attempt, DeadLettered(ERROR, RESULT)) is Settled.DONE


async def test_keep_trims_only_what_no_group_reads(real_broker: Broker) -> None:
    broker = real_broker
    hand = await Hand.ready(broker)
    await raw(broker, "XGROUP", "CREATE", "read", "g", "0", "MKSTREAM")
    for stream in ("unread", "read", "whole"):
        for n in range(300):
            await raw(broker, "XADD", stream, "*", "n", n)
    await send(broker, "e1")
    told = [Publication(name, "x", (("event_id", "x"),), keep) for name, keep in (("unread", 10), ("read", 10))]
    await hand.settle(
        await hand.begin(await hand.one()), Completed(RESULT, (*told, Publication("whole", "x", (("event_id", "x"),))))
    )
    assert 10 <= await raw(broker, "XLEN", "unread") < 250
    assert await raw(broker, "XLEN", "read") == 301
    assert await raw(broker, "XLEN", "whole") == 301


async def settled_with(broker: Broker, outcome: Outcome, event: str) -> None:
    hand, attempt = await started(broker, event, f"w-{event}")
    assert await hand.settle(attempt, outcome) is Settled.DONE


@pytest.mark.parametrize("ends", ["completed", "dead"])
async def test_a_reply_stream_is_gone_a_day_after_its_last_entry(broker: Broker, ends: str) -> None:
    def outcome(n: int) -> Outcome:
        told = (Publication("answers", f"a{n}", (("event_id", f"a{n}"),), 100, reply=True),)
        return Completed(RESULT, told) if ends == "completed" else DeadLettered(ERROR, publications=told)

    await settled_with(broker, outcome(1), "e1")
    day = 86_400_000
    assert day - 60_000 < await raw(broker, "PTTL", "answers") <= day
    await raw(broker, "PEXPIRE", "answers", 1000)
    await settled_with(broker, outcome(2), "e2")
    assert day - 60_000 < await raw(broker, "PTTL", "answers") <= day, "renewed at each write"
    # Somebody reads it with a group now, a route that was deployed late perhaps: nothing unread may go.
    await raw(broker, "XGROUP", "CREATE", "answers", "readers", "0")
    await settled_with(broker, outcome(3), "e3")
    assert await raw(broker, "PTTL", "answers") == -1
    assert await raw(broker, "XLEN", "answers") == 3


async def test_results_are_kept_a_day_where_no_group_reads_them(broker: Broker) -> None:
    await settled_with(broker, Completed(RESULT, (TOLD,)), "e1")
    await raw(broker, "DEL", RESULTS)
    for at in (1, 2, await now(broker)):
        await raw(broker, "XADD", RESULTS, f"{at}-1", "n", at)
    await raw(broker, "XGROUP", "CREATE", RESULTS, "readers", "$")
    assert await broker.streams.thin([RESULTS], life=86400.0) == [0]
    await raw(broker, "XGROUP", "DESTROY", RESULTS, "readers")
    assert await broker.streams.thin([RESULTS], life=86400.0) == [2]
    assert await raw(broker, "XLEN", RESULTS) == 1
    await raw(broker, "SET", "text", "x")
    assert await broker.streams.thin(["text", "nothing"], life=1.0) == [0, 0]


async def test_a_stream_that_a_route_reads_does_not_expire(broker: Broker) -> None:
    await send(broker, "e1")
    await raw(broker, "PEXPIRE", STREAM, 1000)  # it was somebody's reply stream before
    await Hand.ready(broker)
    assert await raw(broker, "PTTL", STREAM) == -1


async def test_what_nothing_takes_is_kept_once(broker: Broker) -> None:
    _, attempt = await started(broker)
    bad = Completed(RESULT, (Publication("bad", "b1", (("event_id", "b1"),)),))

    async def hold(outcome: Completed | None = bad) -> Settled:
        return await broker.settlement.hold(
            attempt.claim,
            outcome,
            delivery=attempt.delivery,
            attempts=1,
            meta=attempt.meta,
            dead_letter_stream=DEAD,
            why="bad is not a stream",
            delay=50.0,
        )

    assert await hold() is Settled.DONE
    assert await hold() is Settled.ALREADY
    assert await parked(broker) == [attempt.claim.entry_id]
    record = await run_of(broker, "e1")
    assert (record.status, record.result, record.last_error) == (RunStatus.DELAYED, RESULT, "bad is not a stream")
    await raw(broker, "SET", "bad", "x")
    await make_due(broker)
    two = await Hand.ready(broker, "w2")
    again = await two.begin(await two.one())
    assert again.grant.verdict is Verdict.STAGED
    assert await hold() is Settled.ALREADY
    with pytest.raises(OutcomeRefused) as refused:
        await broker.settlement.finish(again.claim)
    assert refused.value.result == RESULT
    await raw(broker, "DEL", "bad")
    assert await broker.settlement.finish(again.claim) is Settled.DONE
    record = await run_of(broker, "e1")
    assert (record.status, record.attempts, record.last_error) == (RunStatus.COMPLETED, 1, None)
    assert await raw(broker, "XLEN", "bad") == 1


async def test_who_lost_it_keeps_nothing(broker: Broker) -> None:
    one, attempt = await started(broker)
    await one.die()
    two = await Hand.ready(broker, "w2")
    await two.begin(await two.one())
    before = await gate_of(broker, "e1")
    assert (
        await broker.settlement.hold(
            attempt.claim,
            DeadLettered(ERROR),
            delivery=attempt.delivery,
            attempts=1,
            meta=attempt.meta,
            dead_letter_stream=DEAD,
            why="",
            delay=0.0,
        )
        is Settled.LOST
    )
    assert await gate_of(broker, "e1") == before


async def test_a_cancelled_event_needs_no_dead_letters(broker: Broker) -> None:
    hand, attempt = await started(broker)
    await raw(broker, "SET", DEAD, "x")
    await broker.runs.cancel(KEYS, "e1")
    assert await hand.bury(attempt) is Settled.CANCELLED


async def test_only_the_last_twenty_tokens_are_remembered(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    attempts = []
    for _ in range(30):
        attempts.append(await hand.begin(await hand.one()))
        assert await hand.release(attempts[-1]) is Settled.DONE
    gate = await gate_of(broker, "e1")
    assert sum(name.startswith("o:") for name in gate) == 20
    assert await hand.release(attempts[-1]) is Settled.ALREADY
    assert await hand.release(attempts[10]) is Settled.ALREADY
    assert await hand.release(attempts[9]) is Settled.LOST


async def test_a_cancelled_event_ends_with_its_failure_and_not_with_its_success(broker: Broker) -> None:
    for outcome, settled in (
        (Retried(0.0, ERROR), Settled.CANCELLED),
        (DeadLettered(ERROR), Settled.CANCELLED),
        (Completed(RESULT), Settled.DONE),
    ):
        event = type(outcome).__name__
        hand, attempt = await started(broker, event)
        await broker.runs.cancel(KEYS, event)
        assert await hand.settle(attempt, outcome) is settled
        expected = RunStatus.COMPLETED if settled is Settled.DONE else RunStatus.CANCELLED
        assert (await run_of(broker, event)).status is expected
        assert await raw(broker, "XLEN", STREAM) == 0
    assert await raw(broker, "XLEN", DEAD) == 0


async def test_a_released_cancelled_event_ends_at_its_next_begin(broker: Broker) -> None:
    hand, attempt = await started(broker)
    await broker.runs.cancel(KEYS, "e1")
    await hand.release(attempt)
    assert (await hand.begin(await hand.one())).grant.verdict is Verdict.CANCELLED
    assert (await run_of(broker, "e1")).status is RunStatus.CANCELLED
    assert await raw(broker, "XLEN", STREAM) == 0


async def test_a_big_result(broker: Broker) -> None:
    hand, attempt = await started(broker)
    text = "é" * 3_000_000
    told = Publication(RESULTS, "x", (("event_id", "x"), ("payload", text)))
    assert await hand.settle(attempt, Completed(RunResult(text=text), (told,))) is Settled.DONE
    record = await run_of(broker, "e1")
    assert record.result is not None
    assert record.result.text == text


async def test_the_stream_itself_as_a_target(broker: Broker) -> None:
    hand, attempt = await started(broker)
    assert (
        await hand.settle(attempt, Completed(RESULT, (Publication(STREAM, "e2", (("event_id", "e2"),), 1),)))
        is Settled.DONE
    )
    assert dict((await hand.one()).fields) == {b"event_id": b"e2"}


async def test_an_entry_that_could_not_be_decoded_goes_the_same_way(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await raw(broker, "XADD", STREAM, "*", b"\xff\xfe", b"\x80{")
    delivery: Delivery = await hand.one()
    attempt = await hand.begin(delivery, "derived")
    assert await hand.bury(attempt) is Settled.DONE
    (letter,) = await broker.dead_letters.list(DEAD)
    assert letter.fields == {"\\xff\\xfe": "\\x80{"}
    assert json.loads(letter.model_dump_json())["event_id"] == "derived"
