"""Events over routes whose streams lie in different slots, and what must have become of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.broker.outcome import RunMeta
from runtime.engine.base import ChatHistory, Emit, LoadedFlow, RunOutput, RunRequest
from runtime.engine.echo import EchoEngine
from shared_models.codec import downstream_event_id, encode
from shared_models.envelope import EventEnvelope
from shared_models.errors import HeadraceError
from shared_models.result import RunStatus
from tests.support.hand import publish_one
from tests.support.harness import DEADLINE, write_flow

FIRST = RouteKeys("flows:first", "headrace")
SECOND = RouteKeys("flows:second", "headrace")
RESULTS = "flows:second:results"


def write_ring(folder: Path) -> Path:
    """``first`` publishes to ``second``, whose results are read by nobody."""
    write_flow(folder, "first", spec={"publish": [{"to": "flows:second"}]})
    write_flow(folder, "second")
    return folder


@dataclass
class Counting(EchoEngine):
    """Echoes, and counts how often each event was run."""

    runs: Counter[str] = field(default_factory=Counter)
    delay: float = 0.0

    def __post_init__(self) -> None:
        super().__init__()

    async def run(self, flow: LoadedFlow, request: RunRequest, history: ChatHistory, emit: Emit) -> RunOutput:
        self.runs[request.event_id] += 1
        await asyncio.sleep(self.delay)
        return await super().run(flow, request, history, emit)


async def publish(
    broker: Broker, event_id: str, keys: RouteKeys = FIRST, *, payload: Mapping[str, Any] | None = None
) -> None:
    """Publish until it is answered, as a producer must. The id is the input, beside what else is in the payload."""
    whole = {"input_value": event_id, **(payload or {})}
    fields = encode(EventEnvelope(event_id=event_id, root_id=event_id, idempotency_key=event_id, payload=whole))
    meta = RunMeta(route=keys.stream.partition(":")[2], version="", root_id=event_id)
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                await publish_one(broker, keys, keys.stream, fields, event_id=event_id, meta=meta)
            except HeadraceError:
                await asyncio.sleep(0.05)
            else:
                return


async def ended(broker: Broker, keys: RouteKeys, event_id: str) -> bool:
    """Whether the record says that it has completed; a dead letter is an error."""
    record = await broker.runs.get(keys, event_id)
    assert record is None or record.status is not RunStatus.DEAD_LETTERED, record
    return record is not None and record.status is RunStatus.COMPLETED


async def completed(broker: Broker, event_id: str, keys: RouteKeys = FIRST) -> None:
    """Until it has, whatever Redis says in the meantime."""
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                if await ended(broker, keys, event_id):
                    return
            except HeadraceError:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.02)


async def all_ended(broker: Broker, events: list[str], *, timeout: float = DEADLINE) -> None:
    """Until every event has completed on both routes; what a failover has lost is sent again, as its producer would."""
    left = list(events)
    resend_at = time.monotonic() + 5.0
    async with asyncio.timeout(timeout):
        while left:
            try:
                left = [e for e in left if not await ended(broker, SECOND, downstream_event_id(e, 0, 0))]
                if left and time.monotonic() > resend_at:
                    resend_at = time.monotonic() + 5.0
                    for event in left:
                        if await broker.runs.get(FIRST, event) is None:
                            await publish(broker, event)
            except HeadraceError:
                pass
            await asyncio.sleep(0.1)


async def results(broker: Broker) -> Counter[str]:
    """How often each event of ``first`` has a result."""
    found: Any = await broker.connection.command("XRANGE", RESULTS, "-", "+")
    texts = [dict(zip(flat[::2], flat[1::2], strict=True))[b"root_id"].decode() for _, flat in found]
    return Counter(texts)


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Seconds of the block, as its only item afterwards."""
    start, taken = time.monotonic(), list[float]()
    yield taken
    taken.append(time.monotonic() - start)
