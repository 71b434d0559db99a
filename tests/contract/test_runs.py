"""Run records, feeds, cancelling, lists; counts of streams."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from redis.asyncio import Redis

from runtime.broker.client import Broker
from runtime.broker.delivery import Verdict
from runtime.broker.keys import RouteKeys
from runtime.broker.listing import ANY, RunFilter
from runtime.broker.outcome import RunMeta, Settled
from runtime.broker.runs import Cancelled
from runtime.broker.streams import StreamCounts
from runtime.settings import RetentionSettings
from shared_models.errors import EnvelopeInvalid
from shared_models.result import RunEventType, RunStatus
from tests.support.hand import DEAD, KEYS, STREAM, Hand, make_due, now, parked, publish_one, raw, run_of, send

OTHER = RouteKeys("flows:b", "headrace")


async def test_get_and_find(broker: Broker) -> None:
    hand = await Hand.ready(broker, keys=OTHER)
    await send(broker, "e1", stream="flows:b")
    await hand.begin(await hand.one())
    assert await broker.runs.get(KEYS, "e1") is None
    found = await broker.runs.find([KEYS, OTHER], "e1")
    assert found is not None
    assert (found.event_id, found.stream) == ("e1", "flows:b")
    assert await broker.runs.find([], "e1") is None


async def test_a_record_that_is_partly_unreadable_shows_the_rest(broker: Broker) -> None:
    fields = ["status", "from-a-newer-version", "attempts", "x", "result", "{", "published", "[1", "dead_letter", "{"]
    await raw(broker, "HSET", KEYS.run("e1"), *fields, "session_id", b"\xff")
    record = await run_of(broker, "e1")
    assert (record.status, record.attempts, record.result) == (RunStatus.QUEUED, 0, None)
    assert record.session_id == "\\xff"


async def test_list_newest_first_and_by_status(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    for n in range(6):
        await send(broker, f"e{n}")
        attempt = await hand.begin(await hand.one())
        await raw(broker, "ZADD", KEYS.runs, n, f"e{n}")
        if n % 2:
            await hand.complete(attempt)
    assert await ids(broker) == [f"e{n}" for n in (5, 4, 3, 2, 1, 0)]
    assert await ids(broker, count=2) == ["e5", "e4"]
    assert await ids(broker, RunFilter(status=RunStatus.RUNNING), count=2) == ["e4", "e2"]
    assert await ids(broker, RunFilter(since=1, until=3)) == ["e3", "e2", "e1"]
    await raw(broker, "DEL", KEYS.run("e5"))
    assert await ids(broker, count=1) == ["e4"]
    assert await ids(broker, count=2) == ["e4", "e3"]
    assert (await broker.runs.page([OTHER])).records == ()


async def ids(broker: Broker, wanted: RunFilter = ANY, *, count: int = 50) -> list[str]:
    return [record.event_id for record in (await broker.runs.page([KEYS], wanted, count=count)).records]


async def test_pages_over_several_routes_hold_each_run_once(broker: Broker) -> None:
    """Also where many began in the same millisecond, on both routes."""
    places = [(keys, at, f"{at}-{n}") for keys in (KEYS, OTHER) for at in (7, 8, 9) for n in range(11)]
    places += [(keys, 8, "on-both") for keys in (KEYS, OTHER)]
    for keys, at, event in places:
        await raw(broker, "ZADD", keys.runs, at, event)
        tenant = "blue" if event.endswith("0") else "red"
        await raw(broker, "HSET", keys.run(event), "status", "completed", "tenant_id", tenant, "session_id", f"s{at}")
    for wanted, count, size in (
        (ANY, 4, 68),
        (RunFilter(tenant_id="blue"), 2, 12),
        (RunFilter(tenant_id="red", session_id="s8", status=RunStatus.COMPLETED), 3, 20),
        (RunFilter(until=8, tenant_id="red"), 50, 38),
    ):
        found, cursor = [], None
        for _ in range(100):
            page = await broker.runs.page([KEYS, OTHER], wanted, count=count, cursor=cursor)
            found += [(record.stream, record.event_id) for record in page.records]
            if (cursor := page.next) is None:
                break
        assert (len(found), len(set(found))) == (size, size), (wanted, sorted(found))
    with pytest.raises(EnvelopeInvalid):
        await broker.runs.page([KEYS], cursor="e30")


async def test_one_page_looks_at_a_bounded_number_of_runs(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.broker.listing.EXAMINED", 400)
    for n in range(1000):
        await raw(broker, "ZADD", KEYS.runs, n, f"e{n}")
    await raw(broker, "HSET", KEYS.run("e3"), "status", "running")
    pages, cursor = [], None
    while not pages or cursor is not None:
        page = await broker.runs.page([KEYS], RunFilter(status=RunStatus.RUNNING), cursor=cursor)
        pages.append([record.event_id for record in page.records])
        cursor = page.next
    assert pages == [[], [], ["e3"]]


async def test_trim(broker: Broker) -> None:
    small = Broker(broker.connection, RetentionSettings(runs=100.0, run_list=3))
    at = await now(broker)
    for n in range(10):
        await raw(broker, "ZADD", KEYS.runs, at - n * 30_000, f"e{n}")
    await small.runs.trim([KEYS])
    assert await raw(broker, "ZRANGE", KEYS.runs, 0, -1) == [b"e2", b"e1", b"e0"]


async def test_feed(broker: Broker) -> None:
    for data in ('{"text":"é\\ud800"}', *(f'{{"n":{n}}}' for n in range(3))):
        await line(broker, "token", data)
    lines = await broker.runs.feed(KEYS, "e1")
    assert [line.data for line in lines] == [{"text": "é\ud800"}, {"n": 0}, {"n": 1}, {"n": 2}]
    assert lines[0].at > 0
    assert [line.data for line in await broker.runs.feed(KEYS, "e1", after=lines[1].id, count=1)] == [{"n": 1}]
    assert await broker.runs.feed(KEYS, "e1", after=lines[3].id, block=0.01) == []
    waiting = asyncio.create_task(broker.runs.feed(KEYS, "e1", after=lines[3].id, block=10.0))
    await asyncio.sleep(0)
    await line(broker, "message", "{}")
    assert [line.type for line in await asyncio.wait_for(waiting, 5.0)] == [RunEventType.MESSAGE]
    await raw(broker, "XADD", KEYS.feed("e1"), "*", "type", "of-a-newer-version", "at", 1)
    assert len(await broker.runs.feed(KEYS, "e1")) == 5


async def test_the_feed_of_an_ended_run_is_in_its_record(broker: Broker) -> None:
    """A stream takes 4 kB however short it is; only those who read it now need one."""
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.retry(await hand.begin(await hand.one()))
    await line(broker, "token", '{"text":"a piece of an answer"}')
    await hand.bury(await hand.begin(await hand.one()))
    lines = await broker.runs.feed(KEYS, "e1")
    assert 0 < await raw(broker, "PTTL", KEYS.feed("e1")) <= 60_000
    await raw(broker, "DEL", KEYS.feed("e1"))  # as when that is over
    kept = await broker.runs.feed(KEYS, "e1")
    assert kept == [line for line in lines if line.type is not RunEventType.TOKEN]
    assert [line.type.value for line in kept] == ["started", "retry", "started", "dead_lettered"]
    assert await broker.runs.feed(KEYS, "e1", after=kept[1].id, block=10.0, count=1) == [kept[2]]
    (letter,) = await broker.dead_letters.list(DEAD)
    await broker.dead_letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter.id)
    (again,) = await broker.runs.feed(KEYS, "e1")
    assert again.type is RunEventType.QUEUED
    assert await broker.runs.feed(KEYS, "e1", after=again.id, block=0.01) == []


async def test_an_ended_run_takes_little_memory(real_broker: Broker) -> None:
    """The README's formula: a kilobyte and a half, and what the result takes; of another kilobyte for a day."""
    hand = await Hand.ready(real_broker)
    await send(real_broker, "0190b5a0-0000-7000-8000-000000000001")
    attempt = await hand.begin(await hand.one())
    await hand.complete(attempt)
    event = attempt.claim.event_id
    run, gate = [await raw(real_broker, "MEMORY", "USAGE", key) for key in (KEYS.run(event), KEYS.gate(event))]
    assert (run < 2200, gate < 700) == (True, True), (run, gate)


async def line(broker: Broker, kind: str, data: str) -> None:
    await raw(broker, "XADD", KEYS.feed("e1"), "*", "type", kind, "data", data)


# --- cancel ---------------------------------------------------------------------------------------------------------


async def test_cancel_of_an_unknown_and_of_an_ended_event(broker: Broker) -> None:
    assert await broker.runs.cancel(KEYS, "e1") is Cancelled.UNKNOWN
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.complete(await hand.begin(await hand.one()))
    assert await broker.runs.cancel(KEYS, "e1") is Cancelled.ENDED


async def test_cancel_of_a_queued_event(broker: Broker) -> None:
    meta = RunMeta(route="a", version="v1", root_id="e1", key="k")
    await publish_one(broker, KEYS, STREAM, (("event_id", "e1"),), event_id="e1", meta=meta)
    assert await broker.runs.cancel(KEYS, "e1") is Cancelled.CANCELLED
    assert await broker.runs.cancel(KEYS, "e1") is Cancelled.ENDED
    assert (await run_of(broker, "e1")).status is RunStatus.CANCELLED
    assert await raw(broker, "XLEN", STREAM) == 1
    hand = await Hand.ready(broker)
    grant = (await hand.begin(await hand.one(), key="k")).grant
    assert (grant.verdict, grant.state) == (Verdict.ENDED, "cancelled")
    assert await raw(broker, "XLEN", STREAM) == 0
    assert (await broker.runs.feed(KEYS, "e1"))[-1].type is RunEventType.CANCELLED


async def test_cancel_of_a_delayed_event(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.retry(await hand.begin(await hand.one(), key="k"), 100.0)
    assert await broker.runs.cancel(KEYS, "e1") is Cancelled.CANCELLED
    assert await raw(broker, "XLEN", STREAM) == 0
    assert await parked(broker) == []
    assert await raw(broker, "ZCARD", KEYS.due) == 0
    record = await run_of(broker, "e1")
    assert (record.status, record.due_at) == (RunStatus.CANCELLED, None)


async def test_cancel_of_a_running_event_asks(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    attempt = await hand.begin(await hand.one())
    assert await broker.runs.cancel(KEYS, "e1") is Cancelled.ASKED
    assert await broker.runs.cancel(KEYS, "e1") is Cancelled.ASKED
    await hand.die()
    two = await Hand.ready(broker, "w2")
    assert (await two.begin(await two.one())).grant.verdict is Verdict.CANCELLED
    assert (await hand.retry(attempt)).name == "LOST"


async def test_cancel_looks_at_the_gate_that_the_run_holds_not_at_the_key_of_the_publish(broker: Broker) -> None:
    """The route's spec may say another key than the envelope, the event's id among them."""
    hand = await Hand.ready(broker)
    meta = RunMeta(route="a", version="v1", root_id="another", key="of-the-envelope")
    await publish_one(broker, KEYS, STREAM, (("event_id", "e1"),), event_id="e1", meta=meta)
    attempt = await hand.begin(await hand.one())
    record = await run_of(broker, "e1")
    assert (record.idempotency_key, record.root_id) == ("e1", "e1")
    assert await broker.runs.cancel(KEYS, "e1") is Cancelled.ASKED
    assert await hand.retry(attempt) is Settled.CANCELLED


async def test_cancel_of_a_waiting_duplicate_leaves_the_first_alone(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    running = await hand.begin(await hand.one(), key="k")
    await send(broker, "e2")
    await hand.begin(await hand.one(), key="k", wait=100.0)
    assert await broker.runs.cancel(KEYS, "e2") is Cancelled.CANCELLED
    await hand.complete(running)
    await make_due(broker)
    grant = (await hand.begin(await hand.one(), key="k")).grant
    assert (grant.verdict, grant.state) == (Verdict.ENDED, "cancelled")
    assert (await run_of(broker, "e1")).status is RunStatus.COMPLETED


# --- counts ---------------------------------------------------------------------------------------------------------


async def counts(broker: Broker, keys: RouteKeys = KEYS) -> StreamCounts:
    (found,) = await broker.streams.counts([keys], [DEAD])
    return found


async def test_counts(broker: Broker) -> None:
    assert await counts(broker) == StreamCounts()
    ids = [await send(broker, f"e{n}") for n in range(10)]
    first = int(ids[0].partition("-")[0])
    assert await counts(broker) == StreamCounts(length=10, waiting=10, oldest_waiting_ms=first)
    hand = await Hand.ready(broker)
    tries = [await hand.begin(d) for d in await hand.fetch(6)]
    await hand.retry(tries[0], 100.0)
    await hand.retry(tries[1], 0.0)
    await hand.bury(tries[2])
    await hand.complete(tries[3])
    due = int(ids[1].partition("-")[0])
    expected = StreamCounts(length=8, waiting=5, running=2, delayed=1, dead=1, oldest_waiting_ms=due, consumers=1)
    assert await counts(broker) == expected


async def test_counts_where_redis_own_lag_is_unknown_or_wrong(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    ids = [await send(broker, f"e{n}") for n in range(50)]
    await hand.fetch(10)
    await raw(broker, "XDEL", STREAM, ids[20], ids[30])
    assert (await counts(broker)).waiting == 38
    await raw(broker, "XTRIM", STREAM, "MINID", "=", ids[15])
    found = await counts(broker)
    assert (found.waiting, found.length) == (33, 33)
    assert found.oldest_waiting_ms == int(ids[15].partition("-")[0])


async def test_counts_of_a_stream_that_two_groups_read(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await raw(broker, "XGROUP", "CREATE", STREAM, "other", "0")
    ids = [await send(broker, f"e{n}") for n in range(50)]
    for delivery in await hand.fetch(10):
        await hand.complete(await hand.begin(delivery))
    await raw(broker, "XDEL", STREAM, ids[20])
    found = await counts(broker)
    assert (found.length, found.waiting, found.running) == (49, 39, 0)


@pytest.mark.parametrize("groups", [["headrace"], ["headrace", "other"]], ids=["one-group", "two-groups"])
async def test_t22_what_waits_is_what_is_there_whatever_redis_says(real_broker: Broker, groups: list[str]) -> None:
    """Beside an independent count, through deletions, trims, settled entries and acknowledgements by others."""
    unsure = 0
    for seed in range(6):
        draw, ids = random.Random(seed), list[str]()
        await raw(real_broker, "FLUSHALL")
        for group in groups:
            await raw(real_broker, "XGROUP", "CREATE", STREAM, group, "0", "MKSTREAM")
        hand = await Hand.ready(real_broker)
        for step in range(40):
            match draw.choice(["send", "send", "read", "settle", "delete", "trim", "other"]):
                case "send":
                    ids += [await send(real_broker, f"e{step}.{n}") for n in range(draw.randrange(4))]
                case "read":
                    await hand.fetch(draw.randrange(1, 4))
                case "settle":
                    for delivery in await hand.fetch(1):
                        if (attempt := await hand.begin(delivery)).grant.verdict is Verdict.RUN:
                            await draw.choice((hand.complete, hand.retry))(attempt)
                case "delete" if ids:
                    await raw(real_broker, "XDEL", STREAM, draw.choice(ids))
                case "trim":
                    await raw(real_broker, "XTRIM", STREAM, "MAXLEN", "=", draw.randrange(5, 30))
                case "other":
                    read = ("XREADGROUP", "GROUP", groups[-1], "another", "COUNT", 2, "NOACK", "STREAMS", STREAM, ">")
                    await raw(real_broker, *read)
            found, (told, last) = await counts(real_broker), await lag_and_last(real_broker)
            unread = len(await raw(real_broker, "XRANGE", STREAM, b"(" + last, "+"))
            due = await raw(real_broker, "ZCOUNT", KEYS.due, "-inf", "+inf")
            assert (found.waiting, found.delayed) == (unread + due, 0), (seed, step)
            unsure += told != unread
    assert unsure > 20, "Redis' own lag would have done"


async def test_t22_what_cannot_be_known_is_not_called_nothing(real_broker: Broker) -> None:
    """More entries on either side of what is read last than can be counted, and Redis does not know either."""
    broker = real_broker
    hand = await Hand.ready(broker)
    await raw(broker, "XGROUP", "CREATE", STREAM, "other", "0")
    fill = "for i = 1, 1500 do redis.call('XADD', KEYS[1], '*', 'a', 'b') end"
    await raw(broker, "EVAL", fill, 1, STREAM)
    for _ in range(15):
        await hand.fetch(100)
    await raw(broker, "EVAL", fill, 1, STREAM)
    (middle,) = await raw(broker, "XRANGE", STREAM, b"(" + (await lag_and_last(broker))[1], "+", "COUNT", 1)
    assert (await counts(broker)).waiting == 1500
    await raw(broker, "XDEL", STREAM, middle[0])
    assert (await lag_and_last(broker))[0] is None
    found = await counts(broker)
    assert (found.waiting, found.length, found.running) == (None, 2999, 1500)
    assert found.oldest_waiting_ms is not None

    await raw(broker, "SET", KEYS.leases, "no sorted set")
    assert (await counts(broker)).waiting is None


@pytest.mark.parametrize("deleted", [False, True], ids=["lag-known", "lag-unknown"])
async def test_few_large_entries_are_read_to_count_them(real_broker: Broker, broker_url: str, deleted: bool) -> None:
    """Each is read whole, on the server's only thread."""
    broker = real_broker
    async with contextlib.aclosing(Redis.from_url(broker_url)) as client, client.monitor() as monitor:
        hand = await Hand.ready(broker)
        await send(broker, "e")
        await hand.one()
        large = "for i = 1, 25 do redis.call('XADD', KEYS[1], '*', 'a', string.rep('b', 400000)) end"
        await raw(broker, "EVAL", large, 1, STREAM)
        if deleted:
            await raw(broker, "XDEL", STREAM, (await raw(broker, "XRANGE", STREAM, "-", "+", "COUNT", 2))[1][0])
        await raw(broker, "ECHO", "count-begins")
        assert (await counts(broker)).waiting == 25 - deleted
        await raw(broker, "ECHO", "count-ends")
        said = ""
        while "count-begins" not in said:
            said = (await monitor.next_command())["command"]
        read = 0
        while "count-ends" not in said:
            said = (await monitor.next_command())["command"]
            read += int(said.split()[-1]) if said.upper().startswith("XRANGE") else 0
    assert read <= (20 if deleted else 3), "entries"


async def lag_and_last(broker: Broker) -> tuple[int | None, bytes]:
    """What Redis says of the group: how many it has not read, and the last that it has."""
    for flat in await raw(broker, "XINFO", "GROUPS", STREAM):
        group = dict(zip(flat[::2], flat[1::2], strict=True))
        if group[b"name"] == b"headrace":
            return group[b"lag"], group[b"last-delivered-id"]
    raise AssertionError("there is no group")


async def test_counts_are_cheap_with_many(real_broker: Broker) -> None:
    broker = real_broker
    await Hand.ready(broker)
    fill = "for i = 1, 200000 do redis.call('XADD', KEYS[1], '*', 'a', 'b') end"
    await raw(broker, "EVAL", fill, 1, STREAM)
    first = (await raw(broker, "XRANGE", STREAM, "-", "+", "COUNT", 1))[0][0]
    await raw(broker, "CONFIG", "RESETSTAT")
    assert (await counts(broker)).waiting == 200_000
    await raw(broker, "XDEL", STREAM, first)
    found = await counts(broker)
    assert (found.waiting, found.length) == (199_999, 199_999)
    stats = (await raw(broker, "INFO", "commandstats")).decode()
    line = next(line for line in stats.splitlines() if line.startswith("cmdstat_evalsha:"))
    assert float(line.partition("usec_per_call=")[2].partition(",")[0]) < 10_000


async def test_counts_of_what_is_no_stream(broker: Broker) -> None:
    await raw(broker, "SET", STREAM, "x")
    await raw(broker, "SET", DEAD, "x")
    assert await counts(broker) == StreamCounts()
    await send(broker, "e1", stream="flows:b")
    both = await broker.streams.counts([KEYS, OTHER], [DEAD, "flows:b:dead_letter"])
    assert [c.waiting for c in both] == [0, 1]
