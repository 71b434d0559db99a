"""A route that is blocked: nothing runs, nothing is charged, one entry at a time tries."""

from __future__ import annotations

from runtime.broker.client import Broker
from runtime.broker.delivery import Verdict
from runtime.broker.outcome import Released, Settled
from shared_models.result import RunStatus
from tests.support.hand import ERROR, KEYS, Hand, gate_of, parked, raw, run_of, send


async def test_block_and_unblock(broker: Broker) -> None:
    assert await broker.streams.blocked([KEYS]) == [None]
    await broker.streams.probe_now(KEYS)
    assert await broker.streams.blocked([KEYS]) == [None]
    assert await broker.streams.block(KEYS, error=ERROR, probe_interval=30.0)
    (info,) = await broker.streams.blocked([KEYS])
    assert info is not None
    assert (info.code, info.reason, info.component_id) == ("run_failed", "it broke", "c-1")
    assert info.next_probe == info.since + 30_000
    other = ERROR.model_copy(update={"message": "still", "component_id": None})
    assert not await broker.streams.block(KEYS, error=other, probe_interval=5.0)
    (again,) = await broker.streams.blocked([KEYS])
    assert again is not None
    assert (again.reason, again.component_id, again.since) == ("still", None, info.since)
    assert again.next_probe == info.next_probe
    await broker.streams.probe_now(KEYS)
    (soon,) = await broker.streams.blocked([KEYS])
    assert soon is not None
    assert soon.next_probe == 0
    assert await broker.streams.unblock(KEYS)
    assert not await broker.streams.unblock(KEYS)


async def test_begin_parks_without_an_attempt(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    entry = await send(broker, "e1")
    delivery = await hand.one()
    await broker.streams.block(KEYS, error=ERROR, probe_interval=30.0)
    assert (await hand.begin(delivery)).grant.verdict is Verdict.BLOCKED
    assert await gate_of(broker, "e1") == {}
    assert await parked(broker) == [entry]
    await broker.streams.unblock(KEYS)
    attempt = await hand.begin(await hand.one())
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 1)


async def test_a_probe_runs_and_its_release_costs_nothing(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await broker.streams.block(KEYS, error=ERROR, probe_interval=30.0)
    for _ in range(5):
        await broker.streams.probe_now(KEYS)
        (delivery,) = (await hand.look(probe=True)).deliveries
        attempt = await hand.begin(delivery, probe=delivery.probe)
        assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 1)
        assert await hand.settle(attempt, Released(ERROR)) is Settled.DONE
    record = await run_of(broker, "e1")
    assert (record.status, record.attempts, record.last_error) == (RunStatus.QUEUED, 0, "it broke")
    assert await raw(broker, "XLEN", "flows:a:dead_letter") == 0


async def test_a_released_probe_can_wait_so_that_the_next_tries_another(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    for event in ("e1", "e2"):
        await send(broker, event)
    await broker.streams.block(KEYS, error=ERROR, probe_interval=30.0)
    seen = []
    for _ in range(2):
        await broker.streams.probe_now(KEYS)
        (delivery,) = (await hand.look(probe=True)).deliveries
        seen.append(delivery.entry_id)
        await hand.settle(await hand.begin(delivery, probe=True), Released(ERROR, 60.0))
    assert len(set(seen)) == 2


async def test_duplicates_of_ended_events_are_dropped_even_so(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.complete(await hand.begin(await hand.one()))
    await send(broker, "e1")
    delivery = await hand.one()
    await broker.streams.block(KEYS, error=ERROR, probe_interval=30.0)
    assert (await hand.begin(delivery)).grant.verdict is Verdict.ENDED


async def test_a_take_over_that_is_blocked_is_not_charged_twice(broker: Broker) -> None:
    one = await Hand.ready(broker, "w1")
    await send(broker, "e1")
    await one.begin(await one.one())
    await one.die()
    two = await Hand.ready(broker, "w2")
    delivery = await two.one()
    await broker.streams.block(KEYS, error=ERROR, probe_interval=30.0)
    assert (await two.begin(delivery)).grant.verdict is Verdict.BLOCKED
    await broker.streams.unblock(KEYS)
    assert (await two.begin(await two.one())).grant.attempts == 1
    await two.die()
    three = await Hand.ready(broker, "w3")
    assert (await three.begin(await three.one())).grant.attempts == 2
