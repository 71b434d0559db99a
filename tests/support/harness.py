"""A worker in the test's own process, and ways to wait for what it does: on a signal, with a deadline."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio as redis_client
import yaml

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.engine.base import Engine
from runtime.engine.echo import EchoEngine
from runtime.settings import RedisSettings, Settings, WorkerSettings
from runtime.worker.process import ReadyReport, run_worker
from shared_models.codec import encode, new_event_id
from shared_models.envelope import EventEnvelope
from shared_models.result import RunRecord

DEADLINE = 20.0
"""Seconds that a test waits for something before it fails."""

ECHO_FLOW: dict[str, Any] = {"id": "0" * 32, "name": "echo", "data": {"nodes": [{"id": "x", "data": {}}], "edges": []}}
"""Enough of an export for the registry; the echo engine looks no further."""


def worker_settings(**worker: Any) -> Settings:
    """Settings with short intervals, so that tests need not wait long."""
    fast = {"sweep_interval": 0.2, "reconcile_interval": 0.3, "poll_interval": 0.2, "grace": 5.0, "lease": 3.0}
    return Settings(worker=WorkerSettings(**{**fast, **worker}))


def write_flow(
    folder: Path, name: str, export: Mapping[str, Any] = ECHO_FLOW, spec: Mapping[str, Any] | None = None
) -> Path:
    """A flow file, and its spec where there is one; written at once, as an editor that saves properly does."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    if spec is not None:
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(dict(spec)))
    fresh = folder / f".{name}.json.new"
    fresh.write_text(json.dumps(export))
    fresh.replace(path)
    return path


@dataclass
class Running:
    """A worker that reads."""

    report: ReadyReport
    task: asyncio.Task[int]
    drain: asyncio.Event

    async def stop(self) -> int:
        """Drain it; its exit code."""
        self.drain.set()
        return await asyncio.wait_for(self.task, DEADLINE)


@asynccontextmanager
async def running(
    url: str,
    flows: Path,
    *,
    engine: Engine | None = None,
    only: Iterable[str] = (),
    settings: Settings | None = None,
) -> AsyncIterator[Running]:
    """A worker, from its first read to its drain."""
    ready: asyncio.Future[ReadyReport] = asyncio.get_running_loop().create_future()
    drain = asyncio.Event()
    task = asyncio.create_task(
        run_worker(
            settings or worker_settings(),
            redis_url=url,
            flows=flows,
            only=frozenset(only),
            engine=engine or EchoEngine(),
            on_ready=lambda report: ready.done() or ready.set_result(report),
            stop=drain,
        ),
        name="test-worker",
    )
    await asyncio.wait({task, ready}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    if not ready.done():
        task.cancel()
        raise AssertionError(f"the worker did not become ready: {task}")
    worker = Running(ready.result(), task, drain)
    try:
        yield worker
    finally:
        if not task.done():
            await worker.stop()


class Client:
    """A producer and reader that knows the streams and nothing else, beside a broker for the records."""

    def __init__(self, url: str) -> None:
        self.redis = redis_client.Redis.from_url(
            url, decode_responses=True, encoding_errors="backslashreplace", socket_timeout=DEADLINE + 5
        )
        self.broker = Broker.connect(url, RedisSettings())

    async def close(self) -> None:
        await self.redis.aclose()
        await self.broker.close()

    async def send(self, stream: str, payload: Mapping[str, Any], **fields: Any) -> str:
        """An event with an id of its own; its id."""
        event_id = fields.pop("event_id", None) or new_event_id()
        fields = {"root_id": event_id, "idempotency_key": event_id, **fields}
        envelope = EventEnvelope(event_id=event_id, payload=dict(payload), **fields)
        await self.redis.xadd(stream, dict(encode(envelope)))
        return event_id

    async def entries(self, stream: str, count: int, *, timeout: float = DEADLINE) -> list[dict[str, str]]:
        """The first ``count`` entries of a stream, as soon as they are there."""
        found: list[dict[str, str]] = []
        last = "0-0"
        async with asyncio.timeout(timeout):
            while len(found) < count:
                for _, entries in await self.redis.xread({stream: last}, block=int(timeout * 1000)) or []:
                    for last, fields in entries:  # noqa: B007  the last id is read after the loop
                        found.append(fields)
        return found

    async def run(self, keys: RouteKeys, event_id: str, *, timeout: float = DEADLINE) -> RunRecord:
        """A run's record once it has ended: the feed tells."""
        after = "0-0"
        async with asyncio.timeout(timeout):
            while True:
                record = await self.broker.runs.get(keys, event_id)
                if record is not None and record.status.final:
                    return record
                for event in await self.broker.runs.feed(keys, event_id, after=after, block=timeout):
                    after = event.id


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Client]:
    """A client, closed at the end."""
    made = Client(url)
    try:
        yield made
    finally:
        await made.close()


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a new user: a clean HOME, nothing of ours or of Redis, and Python keeps what it compiles."""
    without = {"REDIS_URL", "PYTHONDONTWRITEBYTECODE"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_") and k not in without}
    return {**kept, "HOME": str(home), **more}
