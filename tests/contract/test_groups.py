"""Several consumer groups on one stream, and groups that nobody reads with any more."""

from __future__ import annotations

import pytest

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.broker.streams import GroupCount, Retired
from runtime.errors import GroupMissing
from tests.support.hand import KEYS, STREAM, Hand, raw, send

OLD = RouteKeys(STREAM, "old")


async def both(broker: Broker, events: int) -> Hand:
    """Two groups; the old one has three entries in hand, the new one has settled all but the last two."""
    old, new = await Hand.ready(broker, "w-old", OLD), await Hand.ready(broker, "w-new")
    for n in range(events):
        await send(broker, f"e{n}")
    await old.fetch(3)
    for delivery in await new.fetch(events - 2):
        await new.complete(await new.begin(delivery))
    return old


async def test_who_is_left_behind_is_counted(real_broker: Broker) -> None:
    broker = real_broker
    await both(broker, 10)
    await raw(broker, "SET", "text", "x")
    found = await broker.streams.groups([STREAM, "text", "nothing"])
    assert sorted(found[STREAM], key=lambda g: g.name) == [GroupCount("headrace", 2), GroupCount("old", 10)]
    assert (found["text"], found["nothing"]) == ([], [])


async def test_a_group_is_given_up_when_nobody_lives_in_it(broker: Broker) -> None:
    old = await both(broker, 10)
    assert await raw(broker, "XLEN", STREAM) == 10
    assert await broker.streams.retire(OLD) is Retired.READ
    await old.expire()
    assert await broker.streams.retire(OLD) is Retired.DONE
    assert [g.name for g in (await broker.streams.groups([STREAM]))[STREAM]] == ["headrace"]
    assert await raw(broker, "KEYS", f"{OLD.prefix}[dlob]*") == []
    with pytest.raises(GroupMissing):
        await broker.streams.retire(OLD)
    with pytest.raises(GroupMissing):
        await broker.streams.retire(RouteKeys("nothing", "old"))


async def test_a_group_with_which_somebody_else_reads_is_given_up_by_force_only(broker: Broker) -> None:
    """Its consumers have no lease. Those of a dead worker had one."""
    old = await both(broker, 10)
    await old.die()
    await raw(broker, "XREADGROUP", "GROUP", "old", "a-stranger", "COUNT", 1, "STREAMS", STREAM, ">")
    assert await broker.streams.retire(OLD) is Retired.USED
    assert await raw(broker, "ZCARD", OLD.due) == 3
    assert await broker.streams.retire(OLD, quiet=0.0) is Retired.DONE


async def test_what_only_a_group_that_is_gone_needed_is_deleted(broker: Broker) -> None:
    """And nothing else: neither what is unread, nor what is in hand, nor what is parked."""
    old = await both(broker, 10)
    await old.expire()
    await broker.streams.retire(OLD)
    hand = await Hand.ready(broker, "w-last")
    await broker.recovery.audit(KEYS)
    assert await raw(broker, "XLEN", STREAM) == 2
    (first,) = await hand.fetch(1)
    await hand.retry(await hand.begin(first), 1000.0)
    await broker.recovery.audit(KEYS)
    assert await raw(broker, "XLEN", STREAM) == 2
