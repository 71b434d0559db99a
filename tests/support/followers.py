"""Runs that a test tells line by line, as a worker does, and clients that follow them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from runtime.broker.client import Broker
from runtime.broker.feeds import Progress
from runtime.broker.fleet import RouteEntry
from runtime.broker.keys import RouteKeys
from runtime.settings import RedisSettings
from shared_models.result import RunEventType
from tests.support.gateway import GatewayProcess, route_entry
from tests.support.sse import events

DEADLINE = 20
KEYS = RouteKeys("flows:a", "headrace")


@asynccontextmanager
async def asking(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=DEADLINE, limits=limits) as http:
        yield http


async def sent(http: httpx.AsyncClient, route: str, **payload: object) -> str:
    query = "?stream=true" if payload.pop("stream", False) else ""
    done = await http.post(f"/v1/routes/{route}/events{query}", json=payload)
    assert done.status_code == 202, done.text
    return str(done.json()["event_id"])


class Hands:
    """Tells runs as a worker does, line by line."""

    def __init__(self, url: str) -> None:
        self.broker = Broker.connect(url, RedisSettings())

    async def register(self, *routes: RouteEntry) -> None:
        await self.broker.fleet.register(routes)

    async def tell(self, event: str, lines: list[tuple[RunEventType, int]]) -> None:
        told = [Progress(kind, n, {"n": n}) for kind, n in lines]
        await self.broker.feeds.append(KEYS, event, told)

    async def end(self, event: str) -> None:
        """The last line and the record, at once, as the scripts write them."""
        data = ("type", "completed", "at", -1, "data", '{"n":-1}')
        await self.broker.connection.command("EVAL", _END, 2, KEYS.run(event), KEYS.feed(event), *data)


_END = """
redis.call('HSET', KEYS[1], 'status', 'completed')
redis.call('XADD', KEYS[2], '*', unpack(ARGV))
"""


@asynccontextmanager
async def hands(url: str) -> AsyncIterator[Hands]:
    made = Hands(url)
    try:
        await made.register(route_entry("a"))
        yield made
    finally:
        await made.broker.close()


async def storm(url: str, gateway: GatewayProcess, *, runs: int, lines: int, seed: int = 1) -> tuple[int, int]:
    """Follow runs by clients that break off again and again; how often, and how many lines were told.

    Every line is seen once and in order, or this fails.
    """
    draw, breaks, total = random.Random(seed), 0, 0
    async with hands(url) as worker, asking(gateway) as http:
        made = [await sent(http, "a", n=n) for n in range(runs)]

        async def produce(event: str) -> None:
            for start in range(0, lines, 10):
                await worker.tell(
                    event, [(RunEventType.COMPONENT_ENDED, n) for n in range(start, min(start + 10, lines))]
                )
                await asyncio.sleep(draw.uniform(0, 0.02))
            await worker.end(event)

        async def consume(event: str) -> None:
            nonlocal breaks, total
            seen: list[int] = []
            last: str | None = None
            while True:
                left = draw.randrange(1, 40)
                headers = {"last-event-id": last} if last else {}
                async with http.stream("GET", f"/v1/runs/{event}/events", headers=headers) as response:
                    if response.status_code == 204:  # it broke off after the last line
                        assert seen == [*range(lines), -1]
                        total += len(seen)
                        return
                    async for one in events(response):
                        if one.kind == "end":
                            assert seen == [*range(lines), -1], seen
                            total += len(seen)
                            return
                        assert one.kind != "gap"
                        if one.id is not None:
                            last = one.id
                        if "n" in one.data:
                            seen.append(one.data["n"])
                        left -= one.kind != ""
                        if left <= 0:
                            breaks += 1
                            break

        await asyncio.gather(*(produce(event) for event in made), *(consume(event) for event in made))
    return breaks, total
