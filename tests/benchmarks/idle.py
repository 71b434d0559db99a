"""What an idle worker costs: CPU of the worker and of Valkey, as a share of one core, and the worker's memory."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import psutil

from tests.benchmarks.stack import stack
from tests.support.harness import ECHO_FLOW

SECONDS = 20.0
ROUTES = 20


async def measure() -> dict[str, float | int]:
    """Percent of one core over 20 s of idling on 20 routes, after 5 s of settling."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUTES):
            (Path(folder) / f"idle-{number}.json").write_text(json.dumps(ECHO_FLOW))
        with stack(Path(folder), "--engine", "echo") as running:
            worker, valkey = _family(running.worker), [psutil.Process(running.valkey)]
            await asyncio.sleep(5)
            before = [sum(sum(p.cpu_times()[:2]) for p in family) for family in (worker, valkey)]
            await asyncio.sleep(SECONDS)
            after = [sum(sum(p.cpu_times()[:2]) for p in family) for family in (worker, valkey)]
            used = [(b - a) / SECONDS * 100 for a, b in zip(before, after, strict=True)]
            return {
                "routes": ROUTES,
                "worker_cpu_percent_of_a_core": used[0],
                "valkey_cpu_percent_of_a_core": used[1],
                "worker_pss_mb": sum(p.memory_full_info().pss for p in worker) / 1e6,
            }


def _family(pid: int) -> list[psutil.Process]:
    """The supervisor, its zygote and its children."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]
