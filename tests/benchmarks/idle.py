"""What an idle worker costs: CPU of the worker and of Valkey, as a share of one core, and the worker's memory."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import psutil

from tests.benchmarks.figures import Row, Value, cpu_of, pss_of, quiet
from tests.benchmarks.stack import stack
from tests.support.harness import ECHO_FLOW

ROUTES = 20


async def measure(*, quick: bool = False) -> list[Row]:
    """An idle worker on 20 routes."""
    return [await idling(ROUTES, seconds=5.0 if quick else 20.0)]


async def idling(routes: int, *, seconds: float, target: str = "") -> Row:
    """A worker that idles for ``seconds``, after 5 s of settling. The ratio is its CPU to one core's.

    Beside it: how many of its connections wait in a blocking command, per process that runs events.
    """
    with tempfile.TemporaryDirectory() as folder:
        for number in range(routes):
            (Path(folder) / f"idle-{number}.json").write_text(json.dumps(ECHO_FLOW))
        with stack(Path(folder), "--engine", "echo") as running:
            load = quiet()
            await asyncio.sleep(5)
            families = (running.family, [psutil.Process(running.valkey)])
            before = [cpu_of(family) for family in families]
            await asyncio.sleep(seconds)
            used = [(cpu_of(f) - b) / seconds for f, b in zip(families, before, strict=True)]
            client = running.connect()
            blocking = sum("b" in connection["flags"] for connection in await client.client_list())
            await client.aclose()
            values: dict[str, Value] = {
                "worker CPU % of a core": used[0] * 100,
                "Valkey CPU % of a core": used[1] * 100,
                "blocking connections": blocking,
                "worker PSS MB": pss_of(families[0]),
            }
            return Row(f"{routes} routes, idle: CPU, to one core", values, used[0], target, load)
