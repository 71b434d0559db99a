"""Many runs in one worker: what a run has opened, kept and written is gone after it."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
from collections import Counter
from pathlib import Path

import psutil

from runtime.settings import RetentionSettings
from tests.support.harness import client, running, worker_settings
from tests.support.real import REAL, until

pytestmark = REAL

EXAMPLES = Path(__file__).parents[2] / "flows"
ROUTES = ("hello", "code-gen")
OF_A_RUN = ("Graph", "Vertex", "ComponentVertex", "InterfaceVertex", "StateVertex", "RunState", "ChatOverlay")
KEPT = 2
"""Seconds that what has ended is kept."""

WARM_UP, RUNS, LARGE = 60, 150, 200_000


def alive():
    """What a collection leaves: objects of a run by type, and how many there are of all kinds."""
    gc.collect()
    objects = gc.get_objects()
    names = Counter(type(found).__name__ for found in objects)
    return {name: names[name] for name in OF_A_RUN}, len(objects)


async def test_b7_b8_t18_t46_hundreds_of_runs_leave_nothing_behind(server_url, engine, tmp_path):
    """The benchmarks have the slope over ten thousand; here nothing of a run may be alive, open or stored for good."""
    for name in ROUTES:
        shutil.copy(EXAMPLES / f"{name}.json", tmp_path)
        (tmp_path / f"{name}.yaml").write_text(f"idempotency: {{ttl: {KEPT}s}}\nresults: {{keep: 50}}\n")
    settings = worker_settings(concurrency=20).model_copy(
        update={"retention": RetentionSettings(runs=KEPT, chat=KEPT, run_list=100)}
    )
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine, settings=settings):

        async def at_rest():
            return not sum([await c.redis.xlen(f"flows:{name}") for name in ROUTES])

        async def send(count):
            for number in range(count):
                text = "x" * LARGE if number % 10 == 9 else f"event {number}"
                await c.send(f"flows:{ROUTES[number % 2]}", {"input_value": text}, session_id=f"s{number % 20}")
            await until(at_rest, timeout=60)

        async def opened():
            return len(os.listdir("/proc/self/fd")), len(await c.redis.client_list())

        await send(WARM_UP)
        before, objects = alive()
        files, lines = await opened()
        memory = psutil.Process().memory_info().rss
        await send(RUNS)
        after, more_objects = alive()
        more_files, more_lines = await opened()
        assert after == before, "the flows' own graphs are there, no run's"
        # A run makes thousands. Lines to Redis that are opened meanwhile are some too.
        assert more_objects - objects < 4 * RUNS
        # A moment's crowd may have opened a few more lines to Redis; one for each run would be hundreds.
        assert max(more_files - files, more_lines - lines) <= 8
        # The allocator keeps what a crowd of large events once took; the graphs of all runs would be far more.
        assert psutil.Process().memory_info().rss - memory < RUNS * LARGE

        for name in ROUTES:
            assert await c.redis.xlen(f"flows:{name}:results") <= 80, "about 50: Redis trims by whole nodes"
            assert not await c.redis.exists(f"flows:{name}:dead_letter")
        lasting = [key async for key in c.redis.scan_iter() if await c.redis.ttl(key) == -1]
        assert len(lasting) <= 20, "what is stored of a run goes by itself"
        gates = [f"hr:{{flows:{name}}}:headrace:gate:*" for name in ROUTES]
        async with asyncio.timeout(20):
            while any([await c.redis.keys(gate) for gate in gates]):
                await asyncio.sleep(0.2)
