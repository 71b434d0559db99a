"""publish: once per event id, and again where an operator has deleted the entry."""

from __future__ import annotations

import pytest

from runtime.broker.client import Broker
from runtime.broker.keys import published
from runtime.broker.listing import RunFilter
from runtime.broker.outcome import RunMeta
from runtime.broker.publisher import PublishedEntry, PublishRequest
from runtime.errors import PublishRefused
from shared_models.result import RunEventType, RunStatus
from tests.support.hand import KEYS, STREAM, Hand, entries, now, publish_one, raw, run_of

FIELDS = (("event_id", "e1"), ("payload", "{}"))
META = RunMeta(route="a", version="v1", root_id="r1", key="k1", session_id="s1", tenant_id="t1")


async def publish(broker: Broker, event: str = "e1", fields=FIELDS) -> PublishedEntry:
    return await publish_one(broker, KEYS, STREAM, fields, event_id=event, meta=META)


async def test_an_event_is_added_and_its_run_is_queued(broker: Broker) -> None:
    entry = await publish(broker)
    assert entry.new
    assert await entries(broker, STREAM) == [{b"event_id": b"e1", b"payload": b"{}"}]
    record = await run_of(broker, "e1")
    assert (record.status, record.entry_id, record.route) == (RunStatus.QUEUED, entry.entry_id, "a")
    assert (record.root_id, record.session_id, record.tenant_id) == ("r1", "s1", "t1")
    assert (record.idempotency_key, record.attempts) == ("k1", 0)
    assert [line.type for line in await broker.runs.feed(KEYS, "e1")] == [RunEventType.QUEUED]
    assert [r.event_id for r in (await broker.runs.page([KEYS], RunFilter(status=RunStatus.QUEUED))).records] == ["e1"]
    assert not await raw(broker, "EXISTS", KEYS.gate("k1"))


async def test_a_second_publish_is_recognised(broker: Broker) -> None:
    first = await publish(broker)
    assert await publish(broker) == PublishedEntry(first.entry_id, False)
    hand = await Hand.ready(broker)
    attempt = await hand.begin(await hand.one())
    assert await publish(broker) == PublishedEntry(first.entry_id, False)
    await hand.complete(attempt)
    assert await publish(broker) == PublishedEntry(first.entry_id, False)
    assert await raw(broker, "XLEN", STREAM) == 0


async def test_a_deleted_entry_is_published_again(broker: Broker) -> None:
    first = await publish(broker)
    await raw(broker, "XDEL", STREAM, first.entry_id)
    second = await publish(broker)
    assert second.new
    assert second.entry_id != first.entry_id


async def test_the_event_is_compared_not_only_the_id(broker: Broker) -> None:
    """A deleted stream may give the same id to another event within the same millisecond."""
    first = await publish(broker)
    await raw(broker, "DEL", STREAM)
    await raw(broker, "XADD", STREAM, first.entry_id, "event_id", "other")
    assert (await publish(broker)).new
    assert await raw(broker, "XLEN", STREAM) == 2


async def test_an_id_that_is_missing_in_the_fields_is_added(broker: Broker) -> None:
    first = await publish(broker, "e9", (("payload", "{}"),))
    assert await entries(broker, STREAM) == [{b"event_id": b"e9", b"payload": b"{}"}]
    assert await publish(broker, "e9", (("payload", "{}"),)) == PublishedEntry(first.entry_id, False)


async def test_a_stream_that_no_route_reads_has_plain_dedup(broker: Broker) -> None:
    first = await publish_one(broker, None, "out", FIELDS, event_id="e1")
    await raw(broker, "DEL", "out")
    assert await publish_one(broker, None, "out", FIELDS, event_id="e1") == PublishedEntry(first.entry_id, False)
    assert await raw(broker, "KEYS", "hr:*run*") == []


async def test_what_is_repeated_on_a_plain_stream_is_known_from_then_on_for_as_long_again(broker: Broker) -> None:
    """An outcome in parts may be repeated for longer than a publish is remembered."""
    await publish_one(broker, None, "out", FIELDS, event_id="e1")
    (mark,) = await raw(broker, "KEYS", "hr:*pub*")
    await raw(broker, "PEXPIRE", mark, 60_000)
    await publish_one(broker, None, "out", FIELDS, event_id="e1")
    assert await raw(broker, "PTTL", mark) > 60_000
    assert await raw(broker, "XLEN", "out") == 1


async def test_a_target_that_is_no_stream_is_refused_and_nothing_is_written(broker: Broker) -> None:
    await raw(broker, "SET", STREAM, "x")
    with pytest.raises(PublishRefused) as refused:
        await publish(broker)
    assert refused.value.target == STREAM
    assert await raw(broker, "KEYS", "*") == [STREAM.encode()]


async def test_many_in_one_round_trip_each_with_its_own_answer(broker: Broker) -> None:
    await raw(broker, "SET", "bad", "x")
    requests = [
        PublishRequest(STREAM, (("event_id", f"e{n}"), ("payload", "{}")), f"e{n}", KEYS, META) for n in range(50)
    ]
    requests.insert(7, PublishRequest("bad", FIELDS, "e1"))
    answers = await broker.publisher.publish_many(requests)
    assert isinstance(answers[7], PublishRefused)
    assert [e[b"event_id"] for e in await entries(broker, STREAM)] == [f"e{n}".encode() for n in range(50)]
    again = await broker.publisher.publish_many(requests)
    assert [a.new for a in again if isinstance(a, PublishedEntry)] == [False] * 50
    assert await broker.publisher.publish_many([]) == []


async def test_bytes_survive(broker: Broker) -> None:
    value = bytes(range(256)) * 100
    await publish_one(broker, None, "out", ((b"\xff\x00name", value), ("event_id", "e1")), event_id="e1")
    assert await entries(broker, "out") == [{b"\xff\x00name": value, b"event_id": b"e1"}]


async def test_a_resend_of_a_dead_event_after_the_dedup_starts_anew(broker: Broker) -> None:
    await publish(broker)
    hand = await Hand.ready(broker)
    await hand.bury(await hand.begin(await hand.one(), key="k1"))
    assert not (await publish(broker)).new
    await raw(broker, "DEL", published(STREAM, "e1"))
    assert (await publish(broker)).new
    record = await run_of(broker, "e1")
    assert (record.status, record.dead_letter, record.attempts) == (RunStatus.QUEUED, None, 0)


async def test_a_resend_of_a_completed_event_keeps_its_record_while_the_key_is_taken(broker: Broker) -> None:
    await publish(broker)
    hand = await Hand.ready(broker)
    await hand.complete(await hand.begin(await hand.one(), key="k1"))
    await raw(broker, "DEL", published(STREAM, "e1"))
    await publish(broker)
    assert (await run_of(broker, "e1")).status is RunStatus.COMPLETED
    assert (await hand.begin(await hand.one(), key="k1")).grant.state == "completed"
    await raw(broker, "DEL", published(STREAM, "e1"), KEYS.gate("k1"))
    await raw(broker, "HSET", KEYS.run("e1"), "ended_at", await now(broker) - 90_000_000)
    await publish(broker)
    assert (await run_of(broker, "e1")).status is RunStatus.QUEUED


async def test_records_have_an_end(broker: Broker) -> None:
    await publish(broker)
    for key in await raw(broker, "KEYS", "hr:*"):
        if not key.endswith(b":runs"):
            assert await raw(broker, "PTTL", key) > 0, key
