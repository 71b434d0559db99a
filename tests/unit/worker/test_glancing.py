"""A glance that falls due while every slot is taken is made as soon as one is free: a flood lasts for hours."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.settings import Settings, WorkerSettings
from runtime.worker.consumer import Consumer
from runtime.worker.flights import Flights
from runtime.worker.lanes import Lanes
from runtime.worker.limiter import Limiter
from tests.support.hand import Hand, send
from tests.support.servers import fake_connection

pytestmark = pytest.mark.unit

KEYS = RouteKeys("flows:quiet", "headrace")


async def test_a_glance_is_not_put_off_by_slots_that_are_taken() -> None:
    broker, lanes, limiter, nothing = Broker(fake_connection()), Lanes(), Limiter(1), cast(Any, None)
    await Hand.ready(broker, "w1", KEYS)
    lane = lanes.open("quiet", KEYS)
    lane.active = cast(Any, SimpleNamespace(route=SimpleNamespace(spec=SimpleNamespace(slots=None))))
    lane.listening, lane.hungry, lane.next_look = True, False, float("inf")
    consumer = Consumer(
        broker,
        lanes=lanes,
        limiter=limiter,
        flights=Flights(),
        processor=nothing,
        lease=nothing,
        settings=Settings(worker=WorkerSettings(poll_interval=1000.0)),
        worker="w1",
    )
    await send(broker, "a", stream=KEYS.stream)
    limiter.take("flood")
    await consumer._reconcile_if_time()  # so that it is not what the wait ends for
    await consumer._glance_if_time()
    assert not lane.hungry
    waiting = asyncio.create_task(consumer._wait())
    for _ in range(50):  # many turns of the loop: a wait of no length would have ended
        await asyncio.sleep(0)
    assert not waiting.done(), "it waits for a slot, not in circles"
    limiter.give_back("flood")
    consumer.kick()
    async with asyncio.timeout(5):
        await waiting
    await consumer._glance_if_time()
    assert lane.hungry
    await broker.close()


async def test_a_worker_that_is_full_goes_on_telling_that_it_is_alive() -> None:
    """However seldom it reconciles: its probe would have it restarted, and with it the run that takes so long."""
    broker, limiter, nothing = Broker(fake_connection()), Limiter(1), cast(Any, None)
    told, board = asyncio.Queue[None](), SimpleNamespace(polled=lambda: told.put_nowait(None))
    consumer = Consumer(
        broker,
        lanes=Lanes(),
        limiter=limiter,
        flights=Flights(),
        processor=nothing,
        lease=nothing,
        settings=Settings(worker=WorkerSettings(poll_interval=0.01, reconcile_interval=1000.0)),
        worker="w1",
        slot=cast(Any, board),
    )
    limiter.take("long")
    running = asyncio.create_task(consumer.run())
    async with asyncio.timeout(5):
        for _ in range(3):
            await told.get()
    consumer.stop()
    await running
    await broker.close()
