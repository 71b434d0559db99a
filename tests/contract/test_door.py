"""Rates and backlogs at a route's door."""

from __future__ import annotations

import pytest

from runtime.broker.client import Broker
from runtime.broker.door import Admitted, Answer
from runtime.broker.keys import RouteKeys
from shared_models.codec import new_event_id
from shared_models.route import Bounds, LimitsSpec
from tests.support.hand import raw

KEYS = RouteKeys("flows:a", "headrace")


async def admit(broker: Broker, limits: LimitsSpec, count: int = 1, tenant: str | None = None) -> Answer:
    return await broker.door.admit(KEYS, tenant, [new_event_id() for _ in range(count)], limits)


async def test_a_rate_lets_a_burst_through_and_tells_when_the_next_may_come(broker: Broker) -> None:
    limits = LimitsSpec(rate=0.1, burst=3)
    assert [(await admit(broker, limits)).admitted for _ in range(3)] == [Admitted.YES] * 3
    refused = await admit(broker, limits)
    assert refused.admitted is Admitted.RATE
    assert 9 < refused.wait <= 10
    # What is refused is not charged.
    assert (await admit(broker, limits)).wait <= refused.wait
    # Ten seconds later: its time has come nearer by so much.
    key = KEYS.rate(None)
    await raw(broker, "SET", key, float(await raw(broker, "GET", key)) - 10_000)
    assert [(await admit(broker, limits)).admitted for _ in range(2)] == [Admitted.YES, Admitted.RATE]
    assert 0 < await raw(broker, "PTTL", key) <= 30_000


async def test_more_than_a_burst_at_once_pass_when_nothing_was_before(broker: Broker) -> None:
    limits = LimitsSpec(rate=0.1, burst=3)
    assert (await admit(broker, limits, 5)).admitted is Admitted.YES
    refused = await admit(broker, limits)
    assert (refused.admitted, 29 < refused.wait <= 30) == (Admitted.RATE, True)


async def test_each_tenant_has_a_rate_of_its_own_within_the_routes(broker: Broker) -> None:
    limits = LimitsSpec(rate=0.1, burst=3, tenant=Bounds(rate=0.1, burst=1))
    got = [(await admit(broker, limits, tenant=tenant)).admitted for tenant in ("a", "a", "b", None, "c")]
    assert got == [Admitted.YES, Admitted.TENANT_RATE, Admitted.YES, Admitted.YES, Admitted.RATE]


async def test_a_rate_without_a_burst_takes_a_seconds_worth(broker: Broker) -> None:
    got = [(await admit(broker, LimitsSpec(rate=2.0))).admitted for _ in range(3)]
    assert got == [Admitted.YES, Admitted.YES, Admitted.RATE]


async def test_a_backlog_is_what_the_stream_holds(broker: Broker) -> None:
    limits = LimitsSpec(backlog=3)
    for _ in range(2):
        await raw(broker, "XADD", KEYS.stream, "*", "a", "1")
    assert (await admit(broker, limits)).admitted is Admitted.YES
    assert await admit(broker, limits, 2) == Answer(Admitted.BACKLOG, held=2)


async def test_a_tenants_backlog_is_its_events_that_have_not_ended(broker: Broker) -> None:
    limits = LimitsSpec(tenant=Bounds(backlog=2))
    first, second, third = ids = [new_event_id() for _ in range(3)]

    async def one(event_id: str, tenant: str = "a") -> Admitted:
        return (await broker.door.admit(KEYS, tenant, [event_id], limits)).admitted

    assert [await one(event_id) for event_id in ids] == [Admitted.YES, Admitted.YES, Admitted.TENANT_BACKLOG]
    assert await one(first) is Admitted.YES  # a repeat takes no place
    assert await one(third, "b") is Admitted.YES
    await raw(broker, "HSET", KEYS.run(first), "status", "running")
    assert await broker.door.tidy(KEYS, "a") == 0
    await raw(broker, "HSET", KEYS.run(first), "status", "dead_lettered")
    assert await broker.door.tidy(KEYS, "a") == 1
    assert await one(third) is Admitted.YES
    # One that was never published is forgotten after a while.
    await raw(broker, "ZADD", KEYS.open("a"), 1, second)
    assert await broker.door.tidy(KEYS, "a") == 1
    assert await raw(broker, "PTTL", KEYS.open("a")) > 0


async def test_no_bound_no_refusal_and_nothing_kept(broker: Broker) -> None:
    assert (await admit(broker, LimitsSpec(), 100)).admitted is Admitted.YES
    assert await raw(broker, "EXISTS", KEYS.rate(None), KEYS.rate(""), KEYS.open("")) == 0


async def test_the_servers_room(real_broker: Broker) -> None:
    room = await real_broker.door.room()
    assert room is not None
    assert (room.used > 100_000, room.limit, room.share) == (True, 0, 0.0)


@pytest.mark.parametrize("text", ["50/s", "3000/m", "180000 / h"])
def test_rates_are_written_with_their_unit(text: str) -> None:
    assert LimitsSpec.model_validate({"rate": text}).rate == 50.0
