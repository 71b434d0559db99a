"""A closed loop: so many events in flight, a new one for each that has ended. And the ways there and back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import redis.asyncio as redis_client

from tests.benchmarks.figures import Sample

PATIENCE = 60.0
"""Seconds without any event's end after which a measurement fails."""


class Way(Protocol):
    """How events reach what is measured, and how their ends are heard of."""

    async def send(self, numbers: Sequence[int]) -> None:
        """Send events with these numbers."""

    async def ended(self) -> Sequence[int]:
        """The numbers of events that have ended since the last call; at least one, however long that takes."""


class Loop:
    """Runs closed loops over one way. ``cpu`` gives the seconds of CPU that what is measured has used so far."""

    def __init__(self, way: Way, cpu: Callable[[], float]) -> None:
        self._way = way
        self._cpu = cpu
        self._next = 0
        self._sent: dict[int, float] = {}

    async def whole(self, *, in_flight: int, events: int) -> Sample:
        """So many events, from the first that is sent to the last that ends.

        With many in flight they end in bursts: only from nothing to nothing is what was spent that of these events.
        """
        began, cpu, latencies, left = time.perf_counter(), self._cpu(), list[float](), events
        ready = in_flight
        while left or self._sent:
            count = min(ready, left)
            left -= count
            await self._send(count)
            ended = await self._ended()
            latencies += ended
            ready = len(ended)
        return Sample(events, time.perf_counter() - began, self._cpu() - cpu, latencies)

    async def window(self, *, in_flight: int, warm: int, events: int, seconds: float) -> Sample:
        """After ``warm`` ends, the next ``events`` or as many as end in ``seconds``. Leaves ``in_flight`` outstanding.

        For what runs one event at a time.
        """
        await self._send(in_flight)
        while warm > 0:
            ended = await self._ended()
            warm -= len(ended)
            await self._send(len(ended))
        began, cpu, latencies = time.perf_counter(), self._cpu(), list[float]()
        until = began + seconds
        while len(latencies) < events and (time.perf_counter() < until or not latencies):
            ended = await self._ended()
            latencies += ended
            await self._send(len(ended))
        return Sample(len(latencies), time.perf_counter() - began, self._cpu() - cpu, latencies)

    async def drain(self) -> None:
        """Wait until nothing is outstanding."""
        while self._sent:
            await self._ended()

    async def _send(self, count: int) -> None:
        numbers = range(self._next, self._next + count)
        self._next += count
        self._sent.update(dict.fromkeys(numbers, time.perf_counter()))
        if count:
            await self._way.send(numbers)

    async def _ended(self) -> list[float]:
        """How long those took that have ended, in ms."""
        async with asyncio.timeout(PATIENCE):
            ended = await self._way.ended()
        now = time.perf_counter()
        return [(now - self._sent.pop(number)) * 1000 for number in ended]


class StreamWay:
    """Events as entries of a stream, their ends as entries of another: Headrace's way, and a plain worker's.

    ``sends`` and ``reads`` count what it has sent, so that it can be told from what the worker sends.
    """

    def __init__(self, client: redis_client.Redis, stream: str, payload: str = "What is 6 times 7?") -> None:
        self._client = client
        self._stream = stream
        self._payload = payload
        self._last = "0-0"
        self.sends = self.reads = 0

    async def catch_up(self) -> None:
        """Hear only of ends from now on."""
        found = await self._client.xrevrange(f"{self._stream}:results", count=1)
        self._last = found[0][0] if found else "0-0"

    async def send(self, numbers: Sequence[int]) -> None:
        """One pipeline."""
        pipe = self._client.pipeline(transaction=False)
        for number in numbers:
            pipe.xadd(self._stream, {"input_value": self._payload, "root_id": f"{self._stream}-{number}"})
        await pipe.execute()
        self.sends += 1

    async def ended(self) -> Sequence[int]:
        """One blocking read of the results; what fails has none, and the loop hears of it by its patience."""
        [[_, entries]] = await self._client.xread({f"{self._stream}:results": self._last}, block=int(PATIENCE * 1000))
        self.sends += 1
        self.reads += 1
        self._last = entries[-1][0]
        return [int(fields["root_id"].rsplit("-", 1)[1]) for _, fields in entries]


class HttpWay:
    """Events as POST requests to ``lfx serve``, a request each, their ends as the responses."""

    def __init__(self, session: Any, url: str, key: str) -> None:
        self._session = session
        self._url = url
        self._key = key
        self._ended: asyncio.Queue[int] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, numbers: Sequence[int]) -> None:
        """A task each."""
        for number in numbers:
            task = asyncio.create_task(self._post(number), name=f"post:{number}")
            self._tasks.add(task)
            task.add_done_callback(self._done)

    async def ended(self) -> Sequence[int]:
        """Those whose responses are there."""
        found = [await self._ended.get()]
        while not self._ended.empty():
            found.append(self._ended.get_nowait())
        return found

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _post(self, number: int) -> None:
        body = {"input_value": "What is 6 times 7?"}
        async with self._session.post(self._url, json=body, headers={"x-api-key": self._key}) as response:
            answer = json.loads(await response.read())
            assert response.status == 200 and answer["success"], answer
        self._ended.put_nowait(number)

    async def close(self) -> None:
        """Give up what is under way."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
