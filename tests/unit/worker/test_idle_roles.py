"""Roles that have nothing to do: they sleep until they have."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from runtime.broker.keys import RouteKeys
from runtime.worker.flights import Flight, Flights
from runtime.worker.lanes import Lane
from runtime.worker.lookout import Lookout
from runtime.worker.loop import PeriodicLoop


async def test_the_lookout_waits_for_a_flight() -> None:
    flights = Flights()
    ended = asyncio.Event()
    looking = asyncio.create_task(Lookout(cast(Any, None), flights).tick())
    await asyncio.sleep(0)
    assert not looking.done()
    task = asyncio.create_task(cast(Any, ended.wait()))
    flights.add(task, Flight(Lane("a", RouteKeys("flows:a", "headrace")), "1-1"))
    await looking
    ended.set()
    assert await flights.empty(5.0)
    again = asyncio.create_task(Lookout(cast(Any, None), flights).tick())
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()


class Counting(PeriodicLoop):
    name = "counting"

    def __init__(self) -> None:
        super().__init__(60.0)
        self.ticks: asyncio.Queue[None] = asyncio.Queue()

    async def tick(self) -> None:
        self.ticks.put_nowait(None)


async def test_a_periodic_loop_is_nudged() -> None:
    loop = Counting()
    running = asyncio.create_task(loop.run())
    async with asyncio.timeout(5.0):
        await loop.ticks.get()
        loop.nudge()
        await loop.ticks.get()
    assert loop.ticks.empty()
    running.cancel()


async def test_a_periodic_loop_ticks_by_itself() -> None:
    loop = Counting()
    loop.interval = 0.01
    running = asyncio.create_task(loop.run())
    async with asyncio.timeout(5.0):
        for _ in range(5):
            await loop.ticks.get()
    running.cancel()
