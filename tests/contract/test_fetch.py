"""fetch: who gets what, when to look again, and what a blocked route gives out."""

from __future__ import annotations

import asyncio

import pytest

from runtime.broker.client import Broker
from runtime.broker.delivery import Fetched
from runtime.broker.keys import RouteKeys
from runtime.broker.reader import FetchRequest
from runtime.errors import BrokerError, GroupMissing, LeaseLost
from tests.support.hand import ERROR, KEYS, STREAM, Hand, event_of, make_due, parked, raw, send


async def test_new_entries_in_order_as_many_as_asked(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    ids = [await send(broker, f"e{n}") for n in range(5)]
    found = await hand.look(3)
    assert [d.entry_id for d in found.deliveries] == ids[:3]
    assert (found.more, found.tail, found.blocked) == (True, ids[2], False)
    found = await hand.look(3)
    assert [d.entry_id for d in found.deliveries] == ids[3:]
    assert (found.more, found.tail, found.due_in) == (False, ids[4], None)
    found = await hand.look(3)
    assert (found.deliveries, found.more, found.tail) == ((), False, ids[4])


async def test_exactly_as_many_as_there_are_is_not_more(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    ids = [await send(broker, f"e{n}") for n in range(2)]
    found = await hand.look(2)
    assert (len(found.deliveries), found.more, found.tail) == (2, False, ids[1])


async def test_a_full_look_does_not_copy_the_newest_entry(real_broker: Broker) -> None:
    """It may be large, and Redis would stand still for it at each look of a stream in which much waits."""
    hand = await Hand.ready(real_broker)
    ids = [await send(real_broker, f"e{n}") for n in range(5)]
    await raw(real_broker, "CONFIG", "RESETSTAT")
    found = await hand.look(4)
    assert (len(found.deliveries), found.more, found.tail) == (4, True, ids[3])
    assert b"cmdstat_xrevrange" not in await raw(real_broker, "INFO", "commandstats")


async def test_where_the_lag_is_wrong_another_look_finds_that_there_is_nothing(real_broker: Broker) -> None:
    hand = await Hand.ready(real_broker)
    ids = [await send(real_broker, f"e{n}") for n in range(4)]
    await raw(real_broker, "XDEL", STREAM, ids[3])  # what is deleted unread is counted as waiting
    found = await hand.look(3)
    assert len(found.deliveries) == 3
    found = await hand.look(3)
    assert (found.deliveries, found.more, found.tail) == ((), False, ids[2])


async def test_fields_are_bytes_in_order_with_doubles(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    pairs = ((b"b\xff\x00", bytes(range(256))), (b"a", b"1"), (b"a", b"2"), (b"", b""), (b"\r\n", b"\r\n"))
    await raw(broker, "XADD", STREAM, "*", *[part for pair in pairs for part in pair])
    assert (await hand.one()).fields == pairs


async def test_a_big_payload(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    value = b"x" * 8_000_000
    await raw(broker, "XADD", STREAM, "*", "event_id", "e1", "payload", value)
    assert dict((await hand.one()).fields)[b"payload"] == value


async def test_many_fields(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await raw(broker, "XADD", STREAM, "*", *[f"f{n}" for n in range(20_000)])
    assert len((await hand.one()).fields) == 10_000


async def test_due_entries_come_first_and_new_ones_are_not_starved(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    old = [await send(broker, f"old{n}") for n in range(8)]
    for delivery in await hand.fetch(8):
        await hand.retry(await hand.begin(delivery))
    new = [await send(broker, f"new{n}") for n in range(8)]
    found = await hand.look(6)
    assert [d.entry_id for d in found.deliveries] == old[:3] + new[:3]
    assert found.more
    found = await hand.look(20)
    assert [d.entry_id for d in found.deliveries] == old[3:] + new[3:]
    assert not found.more


async def test_due_entries_fill_what_new_ones_leave(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    for n in range(8):
        await send(broker, f"old{n}")
    for delivery in await hand.fetch(8):
        await hand.release(await hand.begin(delivery))
    await send(broker, "new")
    assert [event_of(d) for d in await hand.fetch(6)] == ["old0", "old1", "old2", "new", "old3", "old4"]
    found = await hand.look(1)
    assert (len(found.deliveries), found.more) == (1, True)


async def test_one_slot_at_a_time_starves_neither(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    for n in range(60):
        await send(broker, f"old{n}")
    for delivery in await hand.fetch(60):
        await hand.retry(await hand.begin(delivery))
    for n in range(60):
        await send(broker, f"new{n}")
    kinds = [event_of(await hand.one())[:3] for _ in range(60)]
    assert 5 < kinds.count("old") < 55


async def test_how_long_until_the_next_is_due(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.retry(await hand.begin(await hand.one()), 100.0)
    found = await hand.look()
    assert found.deliveries == ()
    assert found.due_in is not None
    assert 90_000 < found.due_in <= 100_000
    await make_due(broker)
    assert [event_of(d) for d in await hand.fetch()] == ["e1"]
    assert (await hand.look()).due_in is None


async def test_what_another_has_by_redelivery_is_not_stolen(broker: Broker) -> None:
    """The owner check: XCLAIM with min-idle 0 would take it."""
    one, two = await Hand.ready(broker, "w1"), await Hand.ready(broker, "w2")
    entry = await send(broker, "e1")
    await one.retry(await one.begin(await one.one()))
    await raw(broker, "XGROUP", "DESTROY", STREAM, "headrace")
    await broker.streams.ensure_group(KEYS)
    await raw(broker, "XREADGROUP", "GROUP", "headrace", "w1", "STREAMS", STREAM, ">")
    assert await two.fetch() == []
    assert await broker.reader.pending(KEYS, worker="w1") == [entry]


async def test_a_parked_entry_that_was_deleted_is_forgotten(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    entry = await send(broker, "e1")
    await hand.retry(await hand.begin(await hand.one()))
    await raw(broker, "XDEL", STREAM, entry)
    assert await hand.fetch() == []
    assert await parked(broker) == []


async def test_refusals(broker: Broker) -> None:
    hand = Hand(broker)
    with pytest.raises(LeaseLost):
        await hand.look()
    await hand.renew()
    with pytest.raises(GroupMissing):
        await hand.look()
    await send(broker, "e1")
    with pytest.raises(GroupMissing):
        await hand.look()
    await broker.streams.ensure_group(KEYS)
    await hand.expire()
    with pytest.raises(LeaseLost):
        await hand.look()


async def test_many_routes_in_one_round_trip_each_with_its_own_answer(broker: Broker) -> None:
    good, bad = await Hand.ready(broker), RouteKeys("flows:bad", "headrace")
    await raw(broker, "SET", "flows:bad", "x")
    await broker.leases.renew([bad], worker="w1", ttl=60)
    missing = RouteKeys("flows:none", "headrace")
    await broker.leases.renew([missing], worker="w1", ttl=60)
    await send(broker, "e1")
    answers = await broker.reader.fetch([FetchRequest(k, good.name, 5) for k in (bad, KEYS, missing)])
    assert isinstance(answers[0], BrokerError)
    assert not isinstance(answers[0], GroupMissing)
    assert isinstance(answers[1], Fetched)
    assert len(answers[1].deliveries) == 1
    assert isinstance(answers[2], GroupMissing)


async def test_wait_wakes_for_what_is_new_and_only_for_that(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    tail = (await hand.look()).tail
    assert await broker.reader.wait({STREAM: tail, "other": "0-0"}, 0.02) == set()
    waiting = asyncio.create_task(broker.reader.wait({STREAM: tail, "other": "0-0"}, 10.0))
    while not broker.reader._waiting:
        await asyncio.sleep(0)
    await send(broker, "e2")
    assert await asyncio.wait_for(waiting, 5.0) == {STREAM}
    assert len(await hand.fetch()) == 1
    assert await broker.reader.wait({}, 10.0) == set()


async def test_unblock_ends_a_wait_and_keeps_its_connection(real_broker: Broker) -> None:
    broker = real_broker
    for _ in range(20):
        waiting = asyncio.create_task(broker.reader.wait({STREAM: "$"}, 10.0))
        while not waiting.done():
            await broker.reader.unblock()
            await asyncio.sleep(0)
        assert waiting.result() == set()
    assert await raw(broker, "INFO", "clients")
    created = dict(line.split(b":") for line in (await raw(broker, "INFO", "stats")).split(b"\r\n") if b":" in line)
    assert int(created[b"total_connections_received"]) < 2000


async def test_pending_and_read_ids(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    ids = [await send(broker, f"e{n}") for n in range(3)]
    await hand.fetch()
    assert await broker.reader.pending(KEYS, worker="w1") == ids
    assert await broker.reader.pending(KEYS, worker="w1", count=2) == ids[:2]
    assert await broker.reader.pending(KEYS, worker="w2") == []
    await raw(broker, "XDEL", STREAM, ids[1])
    found = await broker.reader.read_ids(KEYS, ids)
    assert [d.entry_id for d in found] == [ids[0], ids[2]]
    assert await broker.reader.pending(KEYS, worker="w1") == [ids[0], ids[2]]
    assert await broker.reader.read_ids(KEYS, []) == []


# --- blocked routes -------------------------------------------------------------------------------------------------


async def test_a_blocked_route_gives_nothing_but_probes(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    ids = [await send(broker, f"e{n}") for n in range(3)]
    assert await broker.streams.block(KEYS, error=ERROR, probe_interval=30.0)
    found = await hand.look()
    assert (found.deliveries, found.blocked, found.more, found.tail) == ((), True, False, ids[2])
    assert found.due_in is not None
    assert (await hand.look(probe=True)).deliveries == ()
    await broker.streams.probe_now(KEYS)
    found = await hand.look(probe=True)
    assert [(d.entry_id, d.probe) for d in found.deliveries] == [(ids[0], True)]
    assert found.due_in is not None
    assert 20_000 < found.due_in <= 30_000
    assert (await hand.look(probe=True)).deliveries == ()


async def test_a_probe_that_finds_no_entry_stays_due(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await broker.streams.block(KEYS, error=ERROR, probe_interval=30.0)
    await broker.streams.probe_now(KEYS)
    assert (await hand.look(probe=True)).deliveries == ()
    await send(broker, "e1")
    assert len((await hand.look(probe=True)).deliveries) == 1


async def test_a_probe_takes_what_is_due_first(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.release(await hand.begin(await hand.one()))
    await send(broker, "e2")
    await broker.streams.block(KEYS, error=ERROR, probe_interval=30.0)
    await broker.streams.probe_now(KEYS)
    (delivery,) = (await hand.look(probe=True)).deliveries
    assert event_of(delivery) == "e1"
