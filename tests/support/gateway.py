"""A gateway for tests: in the test's own process without a socket, or as a process of its own on a free port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from runtime.broker.client import Broker
from runtime.broker.fleet import RouteEntry
from runtime.gateway.app import create_app
from runtime.gateway.deps import Gateway
from runtime.settings import ArchiveSettings, GatewaySettings, RedisSettings, Settings
from tests.support.command import Running, running

BASE = "http://127.0.0.1:8800"


def route_entry(name: str, **more: Any) -> RouteEntry:
    """A route as a worker registers it, with the default names."""
    stream = more.pop("stream", f"flows:{name}")
    given = {"group": "headrace", "dead_letters": f"{stream}:dead_letter", "results": f"{stream}:results", **more}
    return RouteEntry(route=name, stream=stream, **given)


@dataclass
class InProcess:
    """A gateway in this process, and a client that talks to its application."""

    gateway: Gateway
    http: httpx.AsyncClient

    async def register(self, *routes: RouteEntry) -> None:
        """Make routes known, as a worker does."""
        await self.gateway.broker.fleet.register(routes)


@asynccontextmanager
async def gateway_in_process(
    url: str, *routes: RouteEntry, headers: dict[str, str] | None = None, archive: Path | None = None, **gateway: Any
) -> AsyncIterator[InProcess]:
    """A gateway on a Redis, with these routes registered, and a folder as its archive. ``gateway``: its settings."""
    place = ArchiveSettings(url=archive.as_uri() if archive else None)
    settings = Settings(gateway=GatewaySettings(**gateway), archive=place)
    broker = Broker.connect(url, RedisSettings())
    made = Gateway.make(broker, settings)
    # Errors of the application are answers here too, as they are to a real client.
    transport = httpx.ASGITransport(create_app(made), raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers) as http:
            one = InProcess(made, http)
            await one.register(*routes)
            yield one
    finally:
        await made.following.close()
        await broker.close()


@dataclass
class GatewayProcess:
    """A `headrace gateway` that listens."""

    process: Running
    url: str


@contextmanager
def gateway_process(redis_url: str, home: Path, *words: str, **environ: str) -> Iterator[GatewayProcess]:
    """A `headrace gateway` on a free port of loopback, once it is ready."""
    command: Sequence[str] = ("gateway", "--port", "0", *words)
    with running(*command, home=home, REDIS_URL=redis_url, **environ) as process:
        yield GatewayProcess(process, process.wait_for("ready: ").removeprefix("ready: "))
