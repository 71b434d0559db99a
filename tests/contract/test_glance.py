"""glance: one look over many routes says which of them have something; those that have nothing cost nothing."""

from __future__ import annotations

import pytest

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.broker.pages import PAGE
from runtime.errors import BrokerError, GroupMissing
from runtime.settings import RedisSettings
from tests.support.hand import ERROR, KEYS, STREAM, Hand, make_due, now, raw, send

LARGE = 8_000_000
"""Bytes of a large entry."""


async def glance(broker: Broker, tail: str = "", worker: str = "w1") -> int | BrokerError | None:
    (seen,) = await broker.reader.glance([(KEYS, tail)], worker=worker)
    return seen


async def test_a_route_on_which_nothing_has_happened_has_nothing(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    assert await glance(broker, (await hand.look()).tail) is None
    await send(broker, "e1")
    await hand.complete(await hand.begin(await hand.one()))
    assert await glance(broker, (await hand.look()).tail) is None


async def test_unread_entries(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    tail = (await hand.look()).tail
    await send(broker, "e1")
    assert await glance(broker, tail) == 0
    assert await broker.reader.glance([]) == []
    await hand.one()  # nothing was handed out to anybody by the glance
    assert await glance(broker) is None


async def test_parked_entries_and_when_they_are_due(broker: Broker) -> None:
    """Whoever parks an entry says nothing: this is what finds it."""
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.retry(await hand.begin(await hand.one()), 100.0)
    tail = (await hand.look()).tail
    due_in = await glance(broker, tail)
    assert isinstance(due_in, int)
    assert 90_000 < due_in <= 100_000
    await make_due(broker)
    assert await glance(broker, tail) == 0


async def test_a_lease_that_is_gone_and_a_group_that_is_gone(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    tail = (await hand.look()).tail
    await hand.expire()
    assert await glance(broker, tail) == 0
    assert await glance(broker, tail, worker="") is None
    await hand.renew()
    assert await glance(broker, tail) is None
    await raw(broker, "XGROUP", "DESTROY", STREAM, "headrace")
    assert isinstance(await glance(broker, tail), GroupMissing)
    await raw(broker, "FLUSHALL")
    assert isinstance(await glance(broker, tail), GroupMissing)
    assert isinstance(await glance(broker, worker=""), GroupMissing)


async def test_a_group_that_stands_elsewhere_than_was_known(broker: Broker) -> None:
    """A stream that was made anew has lower ids, which no wait after the old tail would see."""
    hand = await Hand.ready(broker)
    await raw(broker, "XADD", STREAM, "9-9", "event_id", "e1")
    await hand.one()
    tail = (await hand.look()).tail
    assert await glance(broker, tail) is None
    await raw(broker, "XGROUP", "SETID", STREAM, "headrace", "0")
    assert await glance(broker, tail) == 0
    await raw(broker, "DEL", STREAM)
    await raw(broker, "XADD", STREAM, "5-5", "event_id", "e2")
    await broker.streams.ensure_group(KEYS)
    await raw(broker, "XREADGROUP", "GROUP", "headrace", "w2", "STREAMS", STREAM, ">")
    assert await glance(broker, tail) == 0
    assert await glance(broker, (await hand.look()).tail) is None


async def test_a_count_that_redis_has_lost(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    ids = [await send(broker, f"e{n}") for n in range(3)]
    await raw(broker, "XDEL", STREAM, ids[1])
    assert await glance(broker) == 0
    await hand.fetch()
    tail = (await hand.look()).tail
    assert await glance(broker, tail) is None
    gone = await send(broker, "gone")
    await raw(broker, "XDEL", STREAM, gone)
    assert await glance(broker, tail) is None
    await send(broker, "e5")
    assert await glance(broker, tail) == 0


async def test_no_entry_is_copied_to_see_that_it_is_unread_or_under_way(real_broker: Broker) -> None:
    """An entry may be large, and Redis stands still while a script copies it: what scripts hold tells of that."""
    hand = await Hand.ready(real_broker)
    large = await send(real_broker, "e1", data="x" * LARGE)
    await raw(real_broker, "SCRIPT", "FLUSH", "SYNC")
    assert await glance(real_broker) == 0
    assert await held_by_scripts(real_broker) < LARGE
    await hand.one()
    await raw(real_broker, "XDEL", STREAM, await send(real_broker, "gone"))
    assert await lag(real_broker) is None
    await raw(real_broker, "SCRIPT", "FLUSH", "SYNC")
    assert await glance(real_broker, large) is None
    assert await held_by_scripts(real_broker) < LARGE


async def held_by_scripts(broker: Broker) -> int:
    """Bytes of Redis' memory in which scripts run."""
    told: bytes = await raw(broker, "INFO", "memory")
    (line,) = [line for line in told.splitlines() if line.startswith(b"used_memory_vm_eval:")]
    return int(line.partition(b":")[2])


async def lag(broker: Broker) -> int | None:
    """Redis' own count of what the group has not read."""
    (group,) = await raw(broker, "XINFO", "GROUPS", STREAM)
    told: int | None = dict(zip(group[::2], group[1::2], strict=True))[b"lag"]
    return told


async def test_a_route_that_was_blocked(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    tail = (await hand.look()).tail
    await broker.streams.block(KEYS, error=ERROR, probe_interval=30.0)
    assert await glance(broker, tail) == 0
    await broker.streams.unblock(KEYS)
    assert await glance(broker, tail) is None


async def test_many_routes_each_with_its_own_answer(broker: Broker) -> None:
    routes = [RouteKeys(f"flows:{n}", f"g{n % 3}") for n in range(PAGE + 40)]
    for keys in routes:
        await broker.streams.ensure_group(keys)
    await broker.leases.renew(routes, worker="w1", ttl=60)
    await send(broker, "e1", stream=routes[7].stream)
    await send(broker, "e2", stream=routes[PAGE + 20].stream)
    await raw(broker, "ZADD", routes[PAGE].due, await now(broker) + 100_000, "1-1")
    seen = await broker.reader.glance([(keys, "") for keys in routes], worker="w1")
    found = {n: one for n, one in enumerate(seen) if one is not None}
    assert [found.pop(7), found.pop(PAGE + 20)] == [0, 0]
    (due_in,) = found.values()
    assert list(found) == [PAGE]
    assert isinstance(due_in, int)
    assert 90_000 < due_in <= 100_000


@pytest.mark.parametrize("key", ["stream", "due", "leases"])
async def test_a_key_of_another_type_hides_no_other_route(broker: Broker, key: str) -> None:
    good, bad = await Hand.ready(broker), RouteKeys("flows:bad", "headrace")
    await broker.streams.ensure_group(bad)
    await broker.leases.renew([bad], worker="w1", ttl=60)
    await raw(broker, "DEL", getattr(bad, key))
    await raw(broker, "SET", getattr(bad, key), "x")
    assert await broker.reader.glance([(bad, ""), (KEYS, "")], worker="w1") == [0, None]
    await send(broker, "e1")
    assert await broker.reader.glance([(bad, ""), (KEYS, "")], worker="w1") == [0, 0]
    assert len(await good.fetch()) == 1


async def test_a_route_without_permission_takes_no_other_along(real_broker: Broker, broker_url: str) -> None:
    """Redis refuses a call whole for one key of it."""
    routes = [RouteKeys(f"flows:r{n}", "headrace") for n in range(3)]
    hidden = RouteKeys("flows:hidden", "headrace")
    for keys in (*routes, hidden):
        await real_broker.streams.ensure_group(keys)
    await raw(
        real_broker,
        *("ACL", "SETUSER", "some", "on", "nopass", "+@all", "resetkeys", "~flows:r*", "~hr:{flows:r*"),
    )
    some = Broker.connect(broker_url.replace("://", "://some:any@"), RedisSettings())
    try:
        every = [routes[0], hidden, *routes[1:]]
        with pytest.raises(BrokerError):
            await some.leases.renew(every, worker="w1", ttl=60)
        seen = await some.reader.glance([(keys, "") for keys in every], worker="w1")
        assert [seen[0], *seen[2:]] == [None] * 3  # the others' leases were renewed all the same
        assert isinstance(seen[1], BrokerError)
        patrolled = await some.recovery.patrol(every, lease=60.0, gap=5.0, idle=600.0)
        assert [patrolled[0], *patrolled[2:]] == [False] * 3
        assert isinstance(patrolled[1], BrokerError)
    finally:
        await some.close()
        await raw(real_broker, "ACL", "DELUSER", "some")
