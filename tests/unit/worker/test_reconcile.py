"""Reconciliation: an entry that is pending to a worker which does not know of it is a reply that was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.broker.client import Broker
from runtime.broker.delivery import Delivery
from runtime.broker.keys import RouteKeys
from runtime.settings import Settings
from runtime.worker.consumer import Consumer
from runtime.worker.flights import Flight, Flights
from runtime.worker.lanes import Lane, Lanes
from runtime.worker.limiter import Limiter
from tests.support.hand import Hand, send
from tests.support.servers import fake_connection

pytestmark = pytest.mark.unit


async def test_a_run_that_ends_while_redis_is_asked_is_no_lost_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, lanes, flights = Broker(fake_connection()), Lanes(), Flights()
    lane, entry = await lane_with_an_entry(broker, lanes, "lost")
    other, others = await lane_with_an_entry(broker, lanes, "ending")
    other.flights[others] = "token"
    read_ids, processed = broker.reader.read_ids, list[str]()

    async def slowly(keys: RouteKeys, ids: Sequence[str]) -> list[Delivery]:
        if keys == lane.keys and other.flights:
            await broker.leases.unstarted(other.keys, worker="w1", ids=[others], delay=100.0)
            del other.flights[others]
        return await read_ids(keys, ids)

    class Processor:
        async def process(self, flight: Flight, *_: object) -> None:
            processed.append(flight.entry_id)
            consumer.stop()

    monkeypatch.setattr(broker.reader, "read_ids", slowly)
    nothing = cast(Any, None)
    consumer = Consumer(
        broker,
        lanes=lanes,
        limiter=Limiter(4),
        flights=flights,
        processor=cast(Any, Processor()),
        lease=nothing,
        settings=Settings(),
        worker="w1",
    )
    async with asyncio.timeout(5.0):
        await consumer.run()
        await flights.empty(None)
    assert processed == [entry]
    assert other.unsure  # it is looked at once more
    await broker.close()


async def lane_with_an_entry(broker: Broker, lanes: Lanes, name: str) -> tuple[Lane, str]:
    """A lane whose worker was handed an entry that it does not know of; the entry's id."""
    keys = RouteKeys(f"flows:{name}", "headrace")
    hand = await Hand.ready(broker, "w1", keys)
    await send(broker, name, stream=keys.stream)
    lane = lanes.open(name, keys)
    lane.listening = lane.unsure = True
    lane.active = cast(Any, SimpleNamespace(route=SimpleNamespace(spec=SimpleNamespace(slots=None))))
    return lane, (await hand.one()).entry_id
