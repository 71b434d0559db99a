"""sweep, leave, unstarted, audit, adopt, renew: whose entries go where when a worker is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from runtime.broker.client import Broker
from runtime.broker.delivery import Verdict
from runtime.broker.keys import RouteKeys
from runtime.broker.leases import LeaseState
from runtime.broker.recovery import AUDIT_PAGE, AUDIT_TOGETHER, PATROL_CONSUMERS, PATROL_PAGE, Swept
from runtime.broker.scripts import Call
from runtime.errors import BrokerError, BrokerUnavailable, GroupMissing, LeaseLost
from tests.support.hand import KEYS, LEASE, STREAM, Hand, event_of, now, parked, raw, send, sweep


async def consumers(broker: Broker) -> set[str]:
    return {c[1].decode() for c in await raw(broker, "XINFO", "CONSUMERS", STREAM, "headrace")} - {"~parked"}


async def lease_of(broker: Broker, worker: str) -> float | None:
    score = await raw(broker, "ZSCORE", KEYS.leases, worker)
    return None if score is None else float(score)


# --- renew ----------------------------------------------------------------------------------------------------------


async def test_renew(broker: Broker) -> None:
    hand = Hand(broker)
    assert await hand.renew() is LeaseState.REGISTERED
    assert await hand.renew() is LeaseState.RENEWED
    assert 0 < (await lease_of(broker, "w1") or 0) - await now(broker) <= LEASE * 1000
    await hand.expire()
    assert await hand.renew() is LeaseState.RENEWED  # nobody has noticed
    await broker.streams.ensure_group(KEYS)
    await hand.die()
    assert await hand.renew() is LeaseState.DEAD
    assert (await lease_of(broker, "w1") or 0) < 0


async def test_renew_many_routes(broker: Broker) -> None:
    routes = [RouteKeys(f"s{n}", "headrace") for n in range(20)]
    assert await broker.leases.renew(routes, worker="w1", ttl=5) == [LeaseState.REGISTERED] * 20
    assert await broker.leases.renew([], worker="w1", ttl=5) == []


async def test_a_key_that_is_none_of_leases_keeps_no_other_from_being_renewed(broker: Broker) -> None:
    routes = [RouteKeys(f"s{n}", "headrace") for n in range(5)]
    await raw(broker, "SET", routes[2].leases, "x")
    with pytest.raises(BrokerError, match="leases"):
        await broker.leases.renew(routes, worker="w1", ttl=5)
    for keys in (*routes[:2], *routes[3:]):
        assert await raw(broker, "ZSCORE", keys.leases, "w1") is not None


# --- sweep ----------------------------------------------------------------------------------------------------------


async def test_a_worker_whose_lease_has_ended_is_buried_and_its_entries_go_on(broker: Broker) -> None:
    one, two = await Hand.ready(broker, "w1"), await Hand.ready(broker, "w2")
    ids = [await send(broker, f"e{n}") for n in range(3)]
    for delivery in await one.fetch():
        await one.begin(delivery)
    assert await sweep(broker) == Swept()
    await one.expire()
    assert await sweep(broker) == Swept(moved=3, removed=1)
    assert await consumers(broker) == set()
    assert await parked(broker) == ids
    assert [d.entry_id for d in await two.fetch()] == ids
    assert await one.renew() is LeaseState.DEAD
    with pytest.raises(LeaseLost):
        await one.look()


async def test_pages(broker: Broker) -> None:
    one, two = await Hand.ready(broker, "w1"), await Hand.ready(broker, "w2")
    for n in range(25):
        await send(broker, f"e{n}")
    await one.fetch(15)
    await two.fetch(10)
    for hand in (one, two):
        await hand.expire()
    assert [await sweep(broker, page=10) for _ in range(4)] == [Swept(10, 0), Swept(10, 1), Swept(5, 1), Swept(0, 0)]
    assert len(await parked(broker)) == 25


async def test_declare_dead_takes_all_pages_and_the_living_are_left_alone(broker: Broker) -> None:
    one, two = await Hand.ready(broker, "w1"), await Hand.ready(broker, "w2")
    for n in range(260):
        await send(broker, f"e{n}")
    await one.fetch(250)
    await two.fetch(10)
    swept = await broker.recovery.declare_dead(KEYS, worker="w1", blame=None)
    assert (swept.moved, swept.removed) == (250, 1)
    assert await consumers(broker) == {"w2"}
    assert len(await broker.reader.pending(KEYS, worker="w2")) == 10


async def test_after_a_gap_everybody_has_time_to_renew(broker: Broker) -> None:
    """C5: Redis was away, and the sweeper's command comes before the renewals."""
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.fetch()
    await hand.expire()
    args = {"lease": LEASE, "gap": 5.0, "idle": 600.0}
    assert await broker.recovery.sweep(KEYS, **args) == Swept()
    assert await broker.recovery.sweep(KEYS, **args) == Swept()
    await raw(broker, "HSET", KEYS.obits, "#grace", 0)
    await raw(broker, "HSET", KEYS.obits, "#pulse", await now(broker) - 6000)
    assert await broker.recovery.sweep(KEYS, **args) == Swept()
    await raw(broker, "HSET", KEYS.obits, "#grace", 0)
    assert await broker.recovery.sweep(KEYS, **args) == Swept(moved=1, removed=1)


async def test_a_consumer_without_any_lease_goes_when_it_does_nothing(broker: Broker) -> None:
    await broker.streams.ensure_group(KEYS)
    await send(broker, "e1")
    await raw(broker, "XREADGROUP", "GROUP", "headrace", "stranger", "STREAMS", STREAM, ">")
    assert await sweep(broker) == Swept()
    await raw(broker, "HSET", KEYS.obits, "#grace", 0)
    assert await broker.recovery.sweep(KEYS, lease=LEASE, gap=5.0, idle=-1.0) == Swept(moved=1, removed=1)
    assert len(await parked(broker)) == 1


async def test_late_commands_of_the_dead_find_a_tombstone(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    delivery = await hand.one()
    await hand.die()
    await send(broker, "e2")
    await raw(broker, "XREADGROUP", "GROUP", "headrace", "w1", "STREAMS", STREAM, ">")  # was on its way
    assert (await hand.begin(delivery)).grant.verdict is Verdict.NO_LEASE
    assert await sweep(broker) == Swept(moved=1, removed=1)
    assert len(await parked(broker)) == 2


# --- patrol ---------------------------------------------------------------------------------------------------------


async def patrol(broker: Broker, *, idle: float = 600.0) -> bool | BrokerError:
    (needed,) = await broker.recovery.patrol([KEYS], lease=LEASE, gap=5.0, idle=idle)
    return needed


async def without_grace(broker: Broker, keys: RouteKeys = KEYS) -> None:
    await raw(broker, "HSET", keys.obits, "#pulse", await now(broker), "#grace", 0)


async def several(broker: Broker, count: int) -> list[RouteKeys]:
    """So many routes whose groups exist."""
    routes = [RouteKeys(f"flows:{n}", "headrace") for n in range(count)]
    for keys in routes:
        await broker.streams.ensure_group(keys)
    return routes


async def test_a_patrol_finds_a_lease_that_has_ended_and_leaves_the_rest_to_the_sweep(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.fetch()
    await without_grace(broker)
    assert await patrol(broker) is False
    await hand.expire()
    assert await patrol(broker) is True
    assert (await lease_of(broker, "w1") or -1) > 0  # not yet declared dead
    assert await broker.recovery.sweep(KEYS, lease=LEASE, gap=5.0, idle=600.0) == Swept(moved=1, removed=1)
    assert await patrol(broker) is False
    assert len(await parked(broker)) == 1


async def test_a_patrol_keeps_the_pulse_and_the_grace(broker: Broker) -> None:
    """C5 again: the first look, and the first after a gap, give everybody a lease's time."""
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.fetch()
    await hand.expire()
    assert await patrol(broker) is False
    grace = int(await raw(broker, "HGET", KEYS.obits, "#grace"))
    assert 0.9 * LEASE * 1000 < grace - await now(broker) <= LEASE * 1000
    assert await patrol(broker) is False
    assert int(await raw(broker, "HGET", KEYS.obits, "#grace")) == grace
    await raw(broker, "HSET", KEYS.obits, "#grace", 0, "#pulse", await now(broker) - 6000)
    assert await patrol(broker) is False
    assert await broker.recovery.sweep(KEYS, lease=LEASE, gap=5.0, idle=600.0) == Swept()
    await raw(broker, "HSET", KEYS.obits, "#grace", 0)
    before = await now(broker)
    assert await patrol(broker) is True
    assert int(await raw(broker, "HGET", KEYS.obits, "#pulse")) >= before


async def test_a_patrol_finds_strangers_that_do_nothing_and_what_the_dead_took_late(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.die()
    await without_grace(broker)
    assert await patrol(broker) is False
    await raw(broker, "XREADGROUP", "GROUP", "headrace", "w1", "STREAMS", STREAM, ">")  # was on its way
    assert await patrol(broker) is True
    assert await sweep(broker) == Swept(moved=1, removed=1)
    await send(broker, "e2")
    await raw(broker, "XREADGROUP", "GROUP", "headrace", "stranger", "STREAMS", STREAM, ">")
    assert await patrol(broker) is False
    assert await patrol(broker, idle=-1.0) is True


async def test_a_patrol_over_many_routes(broker: Broker) -> None:
    routes = [RouteKeys(f"flows:{n}", f"g{n % 3}") for n in range(PATROL_PAGE + 20)]
    for keys in routes:
        hand = await Hand.ready(broker, "w1", keys)
        await without_grace(broker, keys)
        await raw(broker, "XGROUP", "CREATECONSUMER", keys.stream, keys.group, "w1")
    for dead in (3, PATROL_PAGE + 5):
        await Hand(broker, "w1", routes[dead]).expire()
    await raw(broker, "DEL", routes[9].stream)  # no group: whoever reads makes it anew
    await raw(broker, "DEL", routes[11].stream)
    await raw(broker, "SET", routes[11].stream, "x")  # the sweep says what it is
    await raw(broker, "DEL", routes[13].leases)
    await raw(broker, "SET", routes[13].leases, "x")
    await raw(broker, "DEL", routes[15].obits)
    await raw(broker, "SET", routes[15].obits, "x")
    found = await broker.recovery.patrol(routes, lease=LEASE, gap=5.0, idle=600.0)
    assert [n for n, needed in enumerate(found) if needed] == [3, 11, 13, 15, PATROL_PAGE + 5]
    assert await broker.recovery.patrol([], lease=LEASE, gap=5.0, idle=600.0) == []
    with pytest.raises(BrokerError):
        await sweep(broker, routes[11])
    assert await sweep(broker, hand.keys) == Swept()


async def test_a_patrol_over_many_consumers_goes_on_in_another_call(real_broker: Broker) -> None:
    """Redis stands still during a call, whose time the consumers make."""
    routes = await several(real_broker, 7)
    for n, keys in enumerate(routes):
        await without_grace(real_broker, keys)
        names = [f"w{n}" for n in range(PATROL_CONSUMERS // 2)]
        await real_broker.connection.pipeline(
            [("XGROUP", "CREATECONSUMER", keys.stream, keys.group, name) for name in names]
        )
        ends = await now(real_broker) + (-1 if n in (1, 6) else 60_000)
        await raw(real_broker, "ZADD", keys.leases, *(word for name in names for word in (ends, name)))
    assert await real_broker.recovery.patrol(routes[:1], lease=LEASE, gap=5.0, idle=600.0) == [False]
    await raw(real_broker, "CONFIG", "RESETSTAT")
    found = await real_broker.recovery.patrol(routes, lease=LEASE, gap=5.0, idle=600.0)
    assert [n for n, needed in enumerate(found) if needed] == [1, 6]
    stats: bytes = await raw(real_broker, "INFO", "commandstats")
    (calls,) = [line for line in stats.splitlines() if line.startswith(b"cmdstat_evalsha:")]
    assert b"calls=4," in calls


# --- poison and the rest --------------------------------------------------------------------------------------------


async def test_poison_is_parked_without_a_due_time_and_adopted(broker: Broker) -> None:
    await send(broker, "kills")
    await send(broker, "good")
    for n in range(3):
        hand = await Hand.ready(broker, f"w{n}")
        assert len(await hand.fetch()) == 2
        await hand.expire()
        swept = await sweep(broker, max_deliveries=3)
    assert len(swept.poison) == 2  # read together, dead together: the caller tells by looking
    hand = await Hand.ready(broker, "last")
    assert await hand.fetch() == []
    adopted = await broker.recovery.adopt(KEYS, worker="last", ids=swept.poison)
    assert [event_of(d) for d in adopted] == ["kills", "good"]
    assert await broker.recovery.adopt(KEYS, worker="last", ids=swept.poison) == []
    attempt = await hand.begin(adopted[0], "derived")
    assert attempt.grant.verdict is Verdict.RUN
    await hand.bury(attempt)
    assert await broker.recovery.adopt(KEYS, worker="last", ids=[]) == []
    await hand.expire()
    with pytest.raises(LeaseLost):
        await broker.recovery.adopt(KEYS, worker="last", ids=["1-1"])


async def test_poison_that_nobody_adopts_comes_back_by_audit(broker: Broker) -> None:
    await send(broker, "kills")
    hand = await Hand.ready(broker)
    await hand.fetch()
    await hand.expire()
    assert len((await sweep(broker, max_deliveries=1)).poison) == 1
    assert await broker.recovery.audit(KEYS) == 1
    assert len(await (await Hand.ready(broker, "w2")).fetch()) == 1


async def test_deleted_entries_of_the_dead_are_forgotten(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    entry = await send(broker, "e1")
    await hand.fetch()
    await raw(broker, "XDEL", STREAM, entry)
    await hand.expire()
    assert (await sweep(broker)).moved == 1
    assert await parked(broker) == []
    assert await consumers(broker) == set()


async def test_without_a_group(broker: Broker) -> None:
    for _ in range(2):
        with pytest.raises(GroupMissing):
            await sweep(broker)
        with pytest.raises(GroupMissing):
            await broker.recovery.audit(KEYS)
        with pytest.raises(GroupMissing):
            await broker.recovery.declare_dead(KEYS, worker="w1", blame=None)
        await send(broker, "e1")


# --- leave and unstarted --------------------------------------------------------------------------------------------


async def test_leave_takes_nothing_along(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    ids = [await send(broker, f"e{n}") for n in range(230)]
    await hand.fetch(230)
    await broker.leases.leave(KEYS, worker="w1")
    assert await consumers(broker) == set()
    assert await parked(broker) == ids
    assert await hand.renew() is LeaseState.DEAD
    await broker.leases.leave(KEYS, worker="w1")
    two = await Hand.ready(broker, "w2")
    attempt = await two.begin((await two.fetch(1))[0])
    assert attempt.grant.attempts == 1


async def test_leaving_one_route_for_a_while(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    ids = [await send(broker, f"e{n}") for n in range(3)]
    await hand.fetch(3)
    await broker.leases.leave(KEYS, worker="w1", ends=False)
    assert await consumers(broker) == set()
    assert await parked(broker) == ids
    with pytest.raises(LeaseLost):
        await hand.fetch(1)
    assert await consumers(broker) == set()
    assert await hand.renew() is LeaseState.REGISTERED
    assert len(await hand.fetch(3)) == 3


async def test_leaving_one_route_revives_no_dead_worker(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await broker.recovery.declare_dead(KEYS, worker="w1", blame=None)
    await broker.leases.leave(KEYS, worker="w1", ends=False)
    assert await hand.renew() is LeaseState.DEAD


async def test_leave_without_a_group(broker: Broker) -> None:
    hand = Hand(broker)
    await hand.renew()
    await broker.leases.leave(KEYS, worker="w1")
    assert await hand.renew() is LeaseState.DEAD


async def test_a_run_left_behind_by_leave_is_not_charged(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.begin(await hand.one())
    await broker.leases.leave(KEYS, worker="w1")
    two = await Hand.ready(broker, "w2")
    assert (await two.begin(await two.one())).grant.attempts == 1


async def test_unstarted(broker: Broker) -> None:
    one, two = await Hand.ready(broker, "w1"), await Hand.ready(broker, "w2")
    ids = [await send(broker, f"e{n}") for n in range(4)]
    await one.fetch(2)
    await two.fetch(1)
    await raw(broker, "XDEL", STREAM, ids[1])
    assert await broker.leases.unstarted(KEYS, worker="w1", ids=[*ids, "1-1"]) == 1
    assert await parked(broker) == [ids[0]]
    assert await broker.leases.unstarted(KEYS, worker="w1", ids=[]) == 0


# --- audit ----------------------------------------------------------------------------------------------------------


async def test_audit_gives_parked_entries_a_due_time_and_forgets_the_deleted(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    ids = [await send(broker, f"e{n}") for n in range(1200)]
    await hand.fetch(1200)
    await broker.leases.unstarted(KEYS, worker="w1", ids=ids)
    await raw(broker, "DEL", KEYS.due)
    await raw(broker, "XDEL", STREAM, *ids[:3])
    assert await broker.recovery.audit(KEYS) == 1200
    assert await parked(broker) == ids[3:1003]
    assert await broker.recovery.audit(KEYS) == 0
    assert len(await hand.fetch(2000)) == 1197


async def test_an_audit_of_many_routes_each_with_its_own_answer(broker: Broker) -> None:
    routes = [RouteKeys(f"flows:{n}", "headrace") for n in range(4)]
    for keys in routes[:2]:
        hand = await Hand.ready(broker, "w1", keys)
        for n in range(600):
            await send(broker, f"e{n}", stream=keys.stream)
        ids = [delivery.entry_id for delivery in await hand.fetch(600)]
        await broker.leases.unstarted(keys, worker="w1", ids=ids)
    await raw(broker, "DEL", routes[0].due)
    await raw(broker, "SET", routes[3].stream, "x")
    found = await broker.recovery.audit_on(routes)
    assert found[:2] == [600, 0]
    assert isinstance(found[2], GroupMissing)
    assert isinstance(found[3], BrokerError)
    assert await broker.recovery.audit_on([]) == []


async def test_an_audit_asks_for_no_more_than_a_page_in_one_round_trip(
    real_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis serves nobody else before a round trip's calls are done."""
    routes = await several(real_broker, AUDIT_TOGETHER + 3)
    for keys in (routes[0], routes[-1]):
        hand = await Hand.ready(real_broker, "w1", keys)
        for n in range(30):
            await send(real_broker, f"e{n}", stream=keys.stream)
        ids = [delivery.entry_id for delivery in await hand.fetch(30)]
        await real_broker.leases.unstarted(keys, worker="w1", ids=ids)
        await raw(real_broker, "DEL", keys.due)
    run_all, asked = real_broker.connection.run_all, list[int]()

    async def counted(calls: Sequence[Call]) -> list[Any]:
        asked.append(sum(int(one.args[-1]) for one in calls))
        return await run_all(calls)

    monkeypatch.setattr(real_broker.connection, "run_all", counted)
    assert await real_broker.recovery.audit_on(routes) == [30, *[0] * (len(routes) - 2), 30]
    assert len(asked) == 4
    assert max(asked) <= AUDIT_PAGE


async def test_what_comes_later_and_is_away_hides_nothing_that_was_found(
    real_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cluster's servers one may be away, and all routes of one round trip be on it."""
    routes = await several(real_broker, PATROL_PAGE + 1)
    run_all, away = real_broker.connection.run_all, routes[-1].stream

    async def partly(calls: Sequence[Call]) -> list[Any]:
        if all(away in one.keys for one in calls):
            raise BrokerUnavailable("away")
        return await run_all(calls)

    monkeypatch.setattr(real_broker.connection, "run_all", partly)
    patrolled = await real_broker.recovery.patrol(routes, lease=LEASE, gap=5.0, idle=600.0)
    assert patrolled[:-1] == [False] * PATROL_PAGE
    assert isinstance(patrolled[-1], BrokerUnavailable)
    audited = await real_broker.recovery.audit_on(routes)
    assert audited[:-1] == [0] * PATROL_PAGE
    assert isinstance(audited[-1], BrokerUnavailable)
    with pytest.raises(BrokerUnavailable):
        await real_broker.recovery.patrol(routes[-1:], lease=LEASE, gap=5.0, idle=600.0)
    with pytest.raises(BrokerUnavailable):
        await real_broker.recovery.audit_on(routes[-1:])


async def test_audit_buries_the_dead_after_a_day(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    old, young = -(await now(broker) - 90_000_000), -(await now(broker) - 80_000_000)
    await raw(broker, "ZADD", KEYS.leases, old, "old", young, "young")
    await raw(broker, "HSET", KEYS.obits, "old", "*", "young", "*")
    await broker.recovery.audit(KEYS)
    assert await lease_of(broker, "old") is None
    assert await lease_of(broker, "young") == young
    assert (await lease_of(broker, hand.name) or 0) > 0
    assert await raw(broker, "HKEYS", KEYS.obits) == [b"young"]


async def test_audit_trims_what_every_group_has_settled(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await raw(broker, "XGROUP", "CREATE", STREAM, "other", "0")
    ids = [await send(broker, f"e{n}") for n in range(6)]
    for delivery in await hand.fetch(4):
        await hand.complete(await hand.begin(delivery))
    assert await raw(broker, "XLEN", STREAM) == 6
    await broker.recovery.audit(KEYS)
    assert await raw(broker, "XLEN", STREAM) == 6
    await raw(broker, "XREADGROUP", "GROUP", "other", "x", "COUNT", 5, "STREAMS", STREAM, ">")
    await raw(broker, "XACK", STREAM, "other", ids[0], ids[1], ids[3])
    await broker.recovery.audit(KEYS)
    left = [entry.decode() for entry, _ in await raw(broker, "XRANGE", STREAM, "-", "+")]
    assert left == ids[2:]
    await raw(broker, "XACK", STREAM, "other", *ids)
    await broker.recovery.audit(KEYS)
    left = [entry.decode() for entry, _ in await raw(broker, "XRANGE", STREAM, "-", "+")]
    assert left == ids[4:]  # the last two are unread here


async def test_audit_of_one_group_trims_nothing(broker: Broker) -> None:
    await Hand.ready(broker)
    await send(broker, "e1")
    await broker.recovery.audit(KEYS)
    assert await raw(broker, "XLEN", STREAM) == 1
