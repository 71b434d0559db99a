"""From XADD to the result event, one event at a time on an idle worker, beside the engine called directly."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import redis.asyncio as redis_client

from tests.benchmarks.stack import quantile, stack

EXAMPLES = Path(__file__).parents[2] / "flows"
EVENTS = 200
WARM_UP = 20


async def measure() -> dict[str, float | int]:
    """Milliseconds for the hello flow: end to end, the engine alone, and the ratio of the medians."""
    with stack(EXAMPLES, "--only", "hello") as running:
        end_to_end = await _end_to_end(running.url)
    alone = await _engine_alone()
    return {
        "events": EVENTS,
        "xadd_to_result_p50_ms": quantile(end_to_end, 0.5),
        "xadd_to_result_p99_ms": quantile(end_to_end, 0.99),
        "engine_alone_p50_ms": quantile(alone, 0.5),
        "ratio_to_engine_alone": quantile(end_to_end, 0.5) / quantile(alone, 0.5),
    }


async def _end_to_end(url: str) -> list[float]:
    client = redis_client.Redis.from_url(url, socket_timeout=30)
    taken, last = [], "0-0"
    for number in range(WARM_UP + EVENTS):
        began = time.perf_counter()
        await client.xadd("flows:hello", {"input_value": f"event {number}"})
        [[_, entries]] = await client.xread({"flows:hello:results": last}, block=20_000)
        taken.append((time.perf_counter() - began) * 1000)
        last = entries[-1][0]
    await client.aclose()
    return taken[WARM_UP:]


async def _engine_alone() -> list[float]:
    """The stock engine as Langflow ships it: a copy of the loaded graph per run, no Redis, no records."""
    import json
    import uuid

    from lfx.graph.graph.base import Graph

    export = json.loads((EXAMPLES / "hello.json").read_text())
    template = Graph.from_payload(export["data"], flow_id=str(uuid.uuid4()), flow_name="hello")
    taken = []
    for number in range(WARM_UP + EVENTS):
        began = time.perf_counter()
        graph = template.copy_for_run(user_id=str(uuid.uuid4()))
        await graph.arun([{"input_value": f"event {number}"}], inputs_components=[[]], types=["any"], outputs=[])
        taken.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0)
    return taken[WARM_UP:]
