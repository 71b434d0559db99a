"""Feeds: reading from where one was, from the stream or the record, and what is told of what is lost; progress."""

from __future__ import annotations

import asyncio

from runtime.broker.client import Broker
from runtime.broker.feeds import FeedPage, Progress
from runtime.broker.keys import RouteKeys
from shared_models.result import RunEventType, RunStatus
from tests.support.hand import KEYS, Hand, raw, send

OTHER = RouteKeys("flows:b", "headrace")


async def page(broker: Broker, after: str = "0-0") -> FeedPage:
    return await broker.feeds.page(KEYS, "e1", after=after)


async def tell(broker: Broker, count: int, kind: RunEventType = RunEventType.COMPONENT_ENDED, first: int = 0) -> None:
    for start in range(first, first + count, 100):
        lines = [Progress(kind, n, {"n": n}) for n in range(start, min(start + 100, first + count))]
        await broker.feeds.append(KEYS, "e1", lines)


async def test_progress_is_read_from_where_one_was(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    assert await page(broker) == FeedPage((), "0-0", gap=False, status=None)
    await hand.begin(await hand.one())
    await tell(broker, 150)
    first = await page(broker)
    assert (len(first.lines), first.status, first.gap) == (100, RunStatus.RUNNING, False)
    assert first.lines[0].type is RunEventType.STARTED
    second = await page(broker, first.last)
    assert [line.data["n"] for line in second.lines] == list(range(99, 150))
    assert await page(broker, second.last) == FeedPage((), second.last, gap=False, status=RunStatus.RUNNING)


async def test_nothing_is_told_where_there_is_no_feed(broker: Broker) -> None:
    """A line that comes when all is forgotten must not make a feed that nobody ends."""
    await tell(broker, 2)
    assert await raw(broker, "EXISTS", KEYS.feed("e1")) == 0


async def test_a_reader_of_a_trimmed_stream_is_told(real_broker: Broker) -> None:
    hand = await Hand.ready(real_broker)
    await send(real_broker, "e1")
    await hand.begin(await hand.one())
    await tell(real_broker, 100)
    early = await page(real_broker)
    await tell(real_broker, 1500, first=100)
    assert (await page(real_broker)).gap
    late = await page(real_broker, early.lines[3].id)
    assert late.gap
    assert not (await page(real_broker, late.last)).gap


async def test_what_a_record_leaves_out_is_told(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    attempt = await hand.begin(await hand.one())
    await tell(broker, 2)
    await tell(broker, 3, RunEventType.TOKEN)
    await tell(broker, 1, first=9)
    await hand.complete(attempt)
    live = await page(broker)
    assert (len(live.lines), live.gap) == (8, False)
    await raw(broker, "DEL", KEYS.feed("e1"))  # as a minute after the end
    kept = await page(broker)
    assert (len(kept.lines), kept.gap, kept.status) == (5, True, RunStatus.COMPLETED)
    assert (await page(broker, live.lines[4].id)).gap
    after = await page(broker, live.lines[5].id)
    assert ([line.type.value for line in after.lines], after.gap) == (["component_ended", "completed"], False)
    assert await page(broker, after.last) == FeedPage((), after.last, gap=False, status=RunStatus.COMPLETED)


async def test_a_record_keeps_the_last_lines(real_broker: Broker) -> None:
    hand = await Hand.ready(real_broker)
    await send(real_broker, "e1")
    attempt = await hand.begin(await hand.one())
    await tell(real_broker, 300)
    await hand.complete(attempt)
    await raw(real_broker, "DEL", KEYS.feed("e1"))
    first = await page(real_broker)
    assert (len(first.lines), first.gap, first.lines[0].data["n"]) == (200, True, 101)


async def test_one_read_waits_for_many_feeds(broker: Broker) -> None:
    for keys, event in ((KEYS, "e1"), (KEYS, "e2"), (OTHER, "e1")):
        await raw(broker, "XADD", keys.feed(event), "1-1", "type", "queued", "at", 1, "data", "{}")
    tails = {KEYS.feed("e1"): "1-1", KEYS.feed("e2"): "1-1", OTHER.feed("e1"): "0-0"}
    news = await broker.feeds.read("reader", tails, seconds=5)
    assert {feed: (one.last, len(one.lines), one.full) for feed, one in news.items()} == {
        OTHER.feed("e1"): ("1-1", 1, False)
    }
    tails[OTHER.feed("e1")] = "1-1"
    waiting = asyncio.create_task(broker.feeds.read("reader", tails, seconds=10))
    await asyncio.sleep(0.05)
    await broker.feeds.append(KEYS, "e2", [Progress(RunEventType.TOKEN, 5, {"text": "hi"})])
    (line,) = (await asyncio.wait_for(waiting, 5))[KEYS.feed("e2")].lines
    assert (line.type, line.at, line.data) == (RunEventType.TOKEN, 5, {"text": "hi"})


async def test_a_read_can_be_ended(real_broker: Broker) -> None:
    waiting = asyncio.create_task(real_broker.feeds.read("a", {KEYS.feed("e1"): "0-0"}, seconds=20))
    other = asyncio.create_task(real_broker.feeds.read("b", {KEYS.feed("e1"): "0-0"}, seconds=0.2))
    await real_broker.feeds.unblock("nobody")
    while not waiting.done():
        await real_broker.feeds.unblock("a")
        await asyncio.sleep(0.01)
    assert (await waiting, await other) == ({}, {})


async def test_what_is_asked_of_a_run_under_way(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    attempt = await hand.begin(await hand.one())
    token = attempt.claim.token
    mine, old = (KEYS, "e1", "e1", token), (KEYS, "e1", "e1", "another.1")

    async def asked() -> list[tuple[bool, bool]]:
        return [(one.cancelled, one.followed) for one in await broker.feeds.asked([mine, old])]

    assert await asked() == [(False, False), (False, False)]
    await broker.feeds.follow([(KEYS, "e1")])
    assert await asked() == [(False, True), (False, True)]
    assert 0 < await raw(broker, "PTTL", KEYS.watched("e1")) <= 30_000
    await broker.runs.cancel(KEYS, "e1")
    assert await asked() == [(True, True), (False, True)]


async def test_one_run_that_cannot_be_asked_about_keeps_no_other_from_being_cancelled(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    token = (await hand.begin(await hand.one())).claim.token
    await broker.runs.cancel(KEYS, "e1")
    await raw(broker, "SET", KEYS.gate("e2"), "no hash")
    other, mine = await broker.feeds.asked([(KEYS, "e2", "e2", "w.1"), (KEYS, "e1", "e1", token)])
    assert (other.cancelled, mine.cancelled) == (False, True)
