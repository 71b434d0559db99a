"""Dead letters: listed, shown, requeued, dropped; nothing of the original is lost."""

from __future__ import annotations

import pytest

from runtime.broker.client import Broker
from runtime.broker.delivery import Verdict
from runtime.errors import PublishRefused
from shared_models.result import RunEventType, RunStatus
from tests.support.hand import DEAD, KEYS, STREAM, Hand, entries, event_of, gate_of, publish_one, raw, run_of, send


async def dead(broker: Broker, event: str = "e1", *, key: str | None = None, **fields: str) -> str:
    hand = await Hand.ready(broker)
    await send(broker, event, **fields)
    await hand.bury(await hand.begin(await hand.one(), key=key, token=f"w1.{event}"))
    return (await broker.dead_letters.list(DEAD))[-1].id


async def test_list_and_get(broker: Broker) -> None:
    ids = [await dead(broker, f"e{n}") for n in range(5)]
    letters = await broker.dead_letters.list(DEAD)
    assert [letter.id for letter in letters] == ids
    assert [letter.event_id for letter in await broker.dead_letters.list(DEAD, count=2, after=ids[1])] == ["e2", "e3"]
    assert await broker.dead_letters.get(DEAD, ids[3]) == letters[3]
    assert await broker.dead_letters.get(DEAD, "1-1") is None
    assert await broker.dead_letters.fields(DEAD, "1-1") is None
    assert await broker.dead_letters.list("none") == []


async def test_what_others_put_there_is_shown_too(broker: Broker) -> None:
    await raw(broker, "XADD", DEAD, "*", "their", "field", b"\xff", b"\xfe", "dl_error", "{")
    (letter,) = await broker.dead_letters.list(DEAD)
    assert letter.code == ""
    await raw(broker, "XADD", DEAD, "*", "their", "field")
    assert (await broker.dead_letters.list(DEAD))[1].fields == {"their": "field"}


async def test_requeue_starts_over_with_the_same_id(broker: Broker) -> None:
    letter = await dead(broker, payload="{}")
    done = await broker.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter)
    assert done.entry_id is not None
    assert done.event_id == "e1"
    assert await raw(broker, "XLEN", DEAD) == 0
    assert await entries(broker, STREAM) == [{b"event_id": b"e1", b"payload": b"{}"}]
    record = await run_of(broker, "e1")
    assert (record.status, record.attempts, record.dead_letter) == (RunStatus.QUEUED, 0, None)
    assert (await gate_of(broker, "e1"))["gen"] == "2"
    assert (await broker.runs.feed(KEYS, "e1"))[-1].type is RunEventType.QUEUED
    hand = await Hand.ready(broker, "w2")
    attempt = await hand.begin(await hand.one())
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 1)
    await hand.complete(attempt)
    assert (await run_of(broker, "e1")).status is RunStatus.COMPLETED


async def test_requeue_twice_is_once(broker: Broker) -> None:
    letter = await dead(broker)
    assert (await broker.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter)).entry_id
    assert (await broker.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter)).entry_id is None
    assert await raw(broker, "XLEN", STREAM) == 1


async def test_requeue_with_other_fields(broker: Broker) -> None:
    letter = await dead(broker, payload="{bad")
    fields = [(b"event_id", b"e1"), (b"payload", b'{"x": "\xc3\xa9"}')]
    await broker.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter, fields=fields)
    assert await entries(broker, STREAM) == [dict(fields)]


async def test_requeue_of_an_entry_without_an_id_keeps_the_derived_one(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await raw(broker, "XADD", STREAM, "*", "input_value", "hi", b"\xff", b"\xfe")
    await hand.bury(await hand.begin(await hand.one(), "derived"))
    (letter,) = await broker.dead_letters.list(DEAD)
    await broker.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter.id)
    delivery = await hand.one()
    assert event_of(delivery) == "derived"
    assert delivery.fields[1:] == ((b"input_value", b"hi"), (b"\xff", b"\xfe"))


async def test_requeue_while_another_event_holds_the_key(broker: Broker) -> None:
    letter = await dead(broker, key="k")
    hand = await Hand.ready(broker, "w2")
    await send(broker, "e2")
    running = await hand.begin(await hand.one(), key="k")
    await broker.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter)
    waiting = await hand.begin(await hand.one(), key="k")
    assert waiting.grant.verdict is Verdict.WAIT
    await hand.complete(running)
    answered = await hand.begin(await hand.one(), key="k")
    assert (answered.grant.verdict, answered.grant.event_id) == (Verdict.ENDED, "e2")


async def test_requeue_to_what_is_no_stream(broker: Broker) -> None:
    letter = await dead(broker)
    await raw(broker, "DEL", STREAM)
    await raw(broker, "SET", STREAM, "x")
    with pytest.raises(PublishRefused):
        await broker.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter)
    assert await raw(broker, "XLEN", DEAD) == 1


async def test_a_resend_after_a_requeue_is_recognised(broker: Broker) -> None:
    fields = (("event_id", "e1"), ("payload", "{}"))
    await publish_one(broker, KEYS, STREAM, fields, event_id="e1")
    hand = await Hand.ready(broker)
    await hand.bury(await hand.begin(await hand.one()))
    (letter,) = await broker.dead_letters.list(DEAD)
    done = await broker.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter.id)
    again = await publish_one(broker, KEYS, STREAM, fields, event_id="e1")
    assert (again.new, again.entry_id) == (False, done.entry_id)


async def test_drop(broker: Broker) -> None:
    ids = [await dead(broker, f"e{n}") for n in range(3)]
    assert await broker.dead_letters.drop(DEAD, [ids[0], ids[2], "1-1"]) == 2
    assert await broker.dead_letters.drop(DEAD, []) == 0
    assert [letter.id for letter in await broker.dead_letters.list(DEAD)] == [ids[1]]
