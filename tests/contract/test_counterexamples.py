"""Every counterexample of PROTOCOL 11 that a script can be asked about, by its number."""

from __future__ import annotations

import pytest

from runtime.broker.client import Broker
from runtime.broker.delivery import Verdict
from runtime.broker.leases import LeaseState
from runtime.broker.outcome import Settled
from runtime.broker.recovery import Swept
from runtime.errors import LeaseLost
from shared_models.result import RunStatus
from tests.support.hand import (
    DEAD,
    KEYS,
    LEASE,
    RESULTS,
    STREAM,
    Hand,
    gate_of,
    make_due,
    now,
    parked,
    publish_one,
    raw,
    run_of,
    send,
    sweep,
)


async def destroy_group(broker: Broker) -> None:
    await raw(broker, "XGROUP", "DESTROY", STREAM, "headrace")
    await broker.streams.ensure_group(KEYS)


async def test_c1_a_duplicate_of_a_delayed_event_waits(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.retry(await hand.begin(await hand.one()), 100.0)
    await send(broker, "e1")
    assert (await hand.begin(await hand.one())).grant.verdict is Verdict.WAIT
    assert (await gate_of(broker, "e1"))["attempts"] == "1"


async def test_c2_the_same_worker_twice_is_told_apart_by_its_token(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    first = await hand.begin(await hand.one())
    await destroy_group(broker)
    second = await hand.begin(await hand.one(), takeover=first.claim.token)
    assert second.grant.verdict is Verdict.RUN
    assert await hand.complete(first) is Settled.LOST
    assert await hand.complete(second) is Settled.DONE
    assert await raw(broker, "XLEN", RESULTS) == 1


async def test_c3_a_token_is_not_the_attempts_number(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    first = await hand.begin(await hand.one())
    await hand.release(first)
    second = await hand.begin(await hand.one())
    assert (first.grant.attempts, second.grant.attempts) == (1, 1)
    assert await hand.complete(first) is Settled.ALREADY
    assert await hand.complete(second) is Settled.DONE


async def test_c4_no_work_begins_without_a_lease(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await raw(broker, "FLUSHALL")
    await broker.streams.ensure_group(KEYS)
    await send(broker, "e1")
    with pytest.raises(LeaseLost):
        await hand.fetch()
    await raw(broker, "XREADGROUP", "GROUP", "headrace", "w1", "STREAMS", STREAM, ">")
    (delivery,) = await broker.reader.read_ids(KEYS, await broker.reader.pending(KEYS, worker="w1"))
    assert (await hand.begin(delivery)).grant.verdict is Verdict.NO_LEASE
    assert await hand.renew() is LeaseState.REGISTERED
    assert (await hand.begin(delivery)).grant.verdict is Verdict.RUN


async def test_c4_no_lease_at_all_is_not_death(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.fetch()
    await raw(broker, "DEL", KEYS.leases)
    assert await sweep(broker) == Swept()
    assert await hand.renew() is LeaseState.REGISTERED


async def test_c5_after_redis_was_away_renewals_come_first(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    attempt = await hand.begin(await hand.one())
    await hand.expire()
    await raw(broker, "HSET", KEYS.obits, "#pulse", await now(broker) - 8000, "#grace", 0)
    assert await broker.recovery.sweep(KEYS, lease=LEASE, gap=5.0, idle=600.0) == Swept()
    assert await hand.renew() is LeaseState.RENEWED
    assert await sweep(broker) == Swept()
    assert await hand.complete(attempt) is Settled.DONE


async def test_c6_the_dead_do_not_return(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    delivery = await hand.one()
    await hand.expire()
    await sweep(broker)
    assert await hand.renew() is LeaseState.DEAD
    assert (await hand.begin(delivery)).grant.verdict is Verdict.NO_LEASE


async def test_c7_a_name_is_used_once(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await broker.leases.leave(KEYS, worker="w1")
    reborn = Hand(broker, "w1")
    assert await reborn.renew() is LeaseState.DEAD
    await hand.die()
    assert await reborn.renew() is LeaseState.DEAD


async def test_c8_a_redelivered_entry_of_a_living_holder_waits(broker: Broker) -> None:
    one, two = await Hand.ready(broker, "w1"), await Hand.ready(broker, "w2")
    await send(broker, "e1")
    attempt = await one.begin(await one.one())
    await destroy_group(broker)
    assert (await two.begin(await two.one())).grant.verdict is Verdict.WAIT
    assert await one.complete(attempt) is Settled.DONE
    assert await raw(broker, "XLEN", STREAM) == 0
    assert await two.fetch() == []


async def test_c9_nobody_waits_for_an_entry_that_is_gone(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.retry(await hand.begin(await hand.one(), key="k"), 1000.0)
    await raw(broker, "DEL", STREAM)
    await broker.streams.ensure_group(KEYS)
    await send(broker, "e2")
    attempt = await hand.begin(await hand.one(), key="k")
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 1)
    await hand.release(attempt)
    # And the same event, sent again, goes on where it was.
    await raw(broker, "FLUSHALL")
    hand = await Hand.ready(broker)
    await raw(broker, "XADD", STREAM, "5-1", "event_id", "e3")
    await hand.retry(await hand.begin(await hand.one(), token="w1.a"), 1000.0)
    await raw(broker, "DEL", STREAM)
    await broker.streams.ensure_group(KEYS)
    await raw(broker, "XADD", STREAM, "5-2", "event_id", "e3")
    attempt = await hand.begin(await hand.one(), token="w1.b")
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 2)


async def test_c9_the_same_event_at_the_same_id_waits_until_it_is_due(broker: Broker) -> None:
    """DEL and XADD within a millisecond: the entry that is parked is there again, and is given out when it is due."""
    hand = await Hand.ready(broker)
    await raw(broker, "XADD", STREAM, "5-1", "event_id", "e3")
    await hand.retry(await hand.begin(await hand.one(), token="w1.a"), 1000.0)
    await raw(broker, "DEL", STREAM)
    await broker.streams.ensure_group(KEYS)
    await raw(broker, "XADD", STREAM, "5-1", "event_id", "e3")
    assert (await hand.begin(await hand.one(), token="w1.b")).grant.verdict is Verdict.WAIT
    await make_due(broker)
    attempt = await hand.begin(await hand.one(), token="w1.c")
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 2)


async def test_c10_deliveries_are_not_attempts(broker: Broker) -> None:
    await send(broker, "e1")
    for n in range(4):
        hand = await Hand.ready(broker, f"w{n}")
        await hand.fetch()
        await hand.expire()
        await sweep(broker)
    hand = await Hand.ready(broker, "last")
    assert (await hand.begin(await hand.one())).grant.attempts == 1


async def test_c11_a_lost_read_is_found_again(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    entry = await send(broker, "e1")
    await hand.fetch()
    assert await hand.fetch() == []
    found = await broker.reader.read_ids(KEYS, await broker.reader.pending(KEYS, worker="w1"))
    assert [d.entry_id for d in found] == [entry]
    assert (await hand.begin(found[0])).grant.verdict is Verdict.RUN


async def test_c12_what_is_read_late_is_not_thrown_away_with_its_consumer(broker: Broker) -> None:
    await Hand.ready(broker)
    first = await send(broker, "e1")
    await raw(broker, "XREADGROUP", "GROUP", "headrace", "w1", "STREAMS", STREAM, ">")
    await broker.leases.leave(KEYS, worker="w1")
    second = await send(broker, "e2")
    await raw(broker, "XREADGROUP", "GROUP", "headrace", "w1", "STREAMS", STREAM, ">")  # made the consumer anew
    assert await sweep(broker) == Swept(1, 1)
    assert await parked(broker) == [first, second]


async def test_c13_a_group_begins_at_the_beginning(broker: Broker) -> None:
    await send(broker, "e1")
    hand = await Hand.ready(broker)
    assert len(await hand.fetch()) == 1
    await send(broker, "e2")
    await destroy_group(broker)
    assert len(await hand.fetch()) == 2


async def test_c14_a_resend_of_a_deleted_entry_is_taken(broker: Broker) -> None:
    fields = (("event_id", "e1"),)
    first = await publish_one(broker, KEYS, STREAM, fields, event_id="e1")
    await raw(broker, "XDEL", STREAM, first.entry_id)
    assert (await publish_one(broker, KEYS, STREAM, fields, event_id="e1")).new


async def test_c15_who_waited_shares_the_dead_letter(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    running = await hand.begin(await hand.one())
    await send(broker, "e1")
    await hand.begin(await hand.one(), wait=100.0)
    await hand.bury(running)
    await make_due(broker)
    grant = (await hand.begin(await hand.one())).grant
    assert (grant.verdict, grant.state) == (Verdict.ENDED, "dead_lettered")
    assert await raw(broker, "XLEN", DEAD) == 1
    assert await raw(broker, "XLEN", STREAM) == 0


async def test_c16_an_ended_event_stays_ended_when_its_key_has_passed_on(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.complete(await hand.begin(await hand.one(), key="k"))
    await raw(broker, "DEL", KEYS.gate("k"))
    await send(broker, "e2")
    await hand.complete(await hand.begin(await hand.one(), key="k"))
    await send(broker, "e1")
    grant = (await hand.begin(await hand.one(), key="k")).grant
    assert (grant.verdict, grant.event_id) == (Verdict.ENDED, "e1")
    assert (await run_of(broker, "e1")).status is RunStatus.COMPLETED


async def test_c17_a_begin_repeated_without_its_group_is_answered_as_first(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    attempt = await hand.begin(await hand.one())
    await raw(broker, "XGROUP", "DESTROY", STREAM, "headrace")
    assert await hand.again(attempt) == attempt.grant
    await broker.streams.ensure_group(KEYS)
    assert await hand.again(attempt) == attempt.grant


async def test_c18_a_zombie_does_not_begin_by_repeating(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    attempt = await hand.begin(await hand.one())
    await hand.expire()
    assert (await hand.again(attempt)).verdict is Verdict.NO_LEASE
    await sweep(broker)
    assert (await hand.again(attempt)).verdict is Verdict.NO_LEASE


async def test_c19_no_read_before_the_first_renewal(broker: Broker) -> None:
    await broker.streams.ensure_group(KEYS)
    await send(broker, "e1")
    with pytest.raises(LeaseLost):
        await Hand(broker).fetch()
    assert await raw(broker, "XINFO", "CONSUMERS", STREAM, "headrace") == []


async def test_c20_an_own_write_is_not_told_as_lost(broker: Broker) -> None:
    one, two = await Hand.ready(broker, "w1"), await Hand.ready(broker, "w2")
    await send(broker, "e1")
    attempt = await one.begin(await one.one())
    assert await one.retry(attempt) is Settled.DONE
    other = await two.begin(await two.one())
    assert await one.retry(attempt) is Settled.ALREADY
    assert await two.complete(other) is Settled.DONE
    assert await one.retry(attempt) is Settled.ALREADY


async def test_c21_what_another_group_needs_is_not_deleted(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await raw(broker, "XGROUP", "CREATE", STREAM, "other", "0")
    await send(broker, "e1")
    await send(broker, "e2")
    tries = [await hand.begin(d) for d in await hand.fetch()]
    await hand.complete(tries[0])
    assert await raw(broker, "XLEN", STREAM) == 2
    await raw(broker, "XREADGROUP", "GROUP", "other", "x", "STREAMS", STREAM, ">")
    await hand.bury(tries[1])
    assert await raw(broker, "XLEN", STREAM) == 2
    assert (await raw(broker, "XPENDING", STREAM, "other"))[0] == 2
    assert (await raw(broker, "XPENDING", STREAM, "headrace"))[0] == 0


async def test_c21_two_routes_on_one_stream_both_see_it_and_the_last_deletes(broker: Broker) -> None:
    from runtime.broker.keys import RouteKeys

    one = await Hand.ready(broker, "w1")
    two = await Hand.ready(broker, "w1", RouteKeys(STREAM, "second"))
    await send(broker, "e1")
    first, second = await one.begin(await one.one()), await two.begin(await two.one())
    assert (first.grant.verdict, second.grant.verdict) == (Verdict.RUN, Verdict.RUN)
    await one.complete(first)
    assert await raw(broker, "XLEN", STREAM) == 1
    await two.complete(second)
    assert await raw(broker, "XLEN", STREAM) == 0
