"""Whether anything grows: 10,000 real runs on one process, with retentions short enough to see
everything go again. The worker's resident memory, Redis's keys and memory, the streams."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import redis.asyncio as redis_client

from tests.benchmarks.figures import Row, quiet
from tests.benchmarks.stack import Stack, stack

EXAMPLES = Path(__file__).parents[2] / "flows"
ROUTES = ("hello", "code-gen")
RUNS = 10_000
WARM_UP = 2_000
AT_ONCE = 40
SAMPLES = 20
KEPT = 10
"""Seconds that what has ended is kept."""


async def measure(*, quick: bool = False) -> list[Row]:
    """The slope of the worker's memory over the runs after a warm-up, in kB a run, and what is left at the end."""
    runs, warm_up = (1_000, 500) if quick else (RUNS, WARM_UP)
    with tempfile.TemporaryDirectory() as folder:
        for name in ROUTES:
            shutil.copy(EXAMPLES / f"{name}.json", folder)
            (Path(folder) / f"{name}.yaml").write_text(f"idempotency: {{ttl: {KEPT}s}}\nresults: {{keep: 100}}\n")
        kept = {"HEADRACE_RETENTION__RUNS": str(KEPT), "HEADRACE_RETENTION__CHAT": str(KEPT)}
        with stack(Path(folder), "--concurrency", str(AT_ONCE), environment=kept) as running:
            load = quiet()
            client = running.connect()
            try:
                await _run(client, warm_up)
                memory = [_resident(running)]
                keys, used = [await client.dbsize()], [await _used(client)]
                step = runs // SAMPLES
                for _ in range(SAMPLES):
                    await _run(client, step)
                    memory.append(_resident(running))
                    keys.append(await client.dbsize())
                    used.append(await _used(client))
                await asyncio.sleep(KEPT + 65)
                left = await client.dbsize()
                waiting = sum([await client.xlen(f"flows:{name}") for name in ROUTES])
            finally:
                await client.aclose()
    slope = _slope([n * step for n in range(SAMPLES + 1)], memory) / 1000
    values = {
        "runs": runs,
        "worker RSS MB first": memory[0] / 1e6,
        "worker RSS MB last": memory[-1] / 1e6,
        "keys first": keys[0],
        "keys last": keys[-1],
        "keys when all has expired": left,
        "Redis MB first": used[0] / 1e6,
        "Redis MB last": used[-1] / 1e6,
        "entries left in the routes' streams": waiting,
    }
    return [Row("slope of the worker's RSS, kB a run", values, slope, "<= 1", load)]


async def _run(client: redis_client.Redis, runs: int) -> None:
    """Send so many events to both flows, never more than a few hundred ahead of the worker, and wait for their end."""
    pipe = client.pipeline(transaction=False)
    for number in range(runs):
        pipe.xadd(
            f"flows:{ROUTES[number % 2]}",
            {"input_value": f"event {number}", "session_id": f"s{number % 50}"},
        )
        if number % 200 == 199 or number == runs - 1:
            await pipe.execute()
            await _empty(client)


async def _empty(client: redis_client.Redis) -> None:
    deadline = time.monotonic() + 120
    while sum([await client.xlen(f"flows:{name}") for name in ROUTES]):
        if time.monotonic() > deadline:
            raise RuntimeError("the worker does not come to an end")
        await asyncio.sleep(0.05)


def _resident(running: Stack) -> int:
    """Bytes of the worker's processes that run events, and of those beside them."""
    return sum(process.memory_info().rss for process in running.family if process.status() != psutil.STATUS_ZOMBIE)


async def _used(client: redis_client.Redis) -> int:
    return int((await client.info("memory"))["used_memory"])


def _slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of the line of least squares."""
    mid_x, mid_y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mid_x) * (y - mid_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mid_x) ** 2 for x in xs)
