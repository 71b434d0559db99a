"""Memory of four processes that run basic prompting: one Headrace worker with four children, four ``lfx serve``.

PSS counts each shared page once among those that share it, so the sums are what the machine has to have.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.benchmarks.figures import Row, Value, pss_of, quiet
from tests.benchmarks.flows import write_exports, write_flows
from tests.benchmarks.peers import RESTRICTED, Served, lfx_serve
from tests.benchmarks.stack import stack
from tests.benchmarks.stub import stub

PROCESSES = 4

RUNS = 20
"""Runs of each process before its memory is looked at."""


VARIANTS = {"": {}, ", installed components only": RESTRICTED}
"""What is measured, and with which settings of Langflow's beside the model's."""


async def measure(*, quick: bool = False) -> list[Row]:
    """Both, one after the other, with each of the variants. Quick: one ``lfx serve``, taken four times."""
    return [await _measure(what, more, servers=1 if quick else PROCESSES) for what, more in VARIANTS.items()]


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def _measure(what: str, more: Mapping[str, str], *, servers: int) -> Row:
    with tempfile.TemporaryDirectory() as folder, stub() as model:
        home, load = Path(folder), quiet()
        flows = write_flows(home / "flows", model, ("basic",))
        with stack(flows, "--processes", str(PROCESSES), "--concurrency", "5", environment=more) as running:
            # Each child takes what it has room for: all four take part, none of them exactly a fourth.
            await running.measure("basic", in_flight=4 * PROCESSES, seconds=0)
            for _ in range(RUNS // 4 - 1):
                await running.measure("basic", in_flight=2 * PROCESSES, seconds=0)
            ours = pss_of(running.family)
            private = [process.memory_full_info().uss / 1e6 for process in running.family]
        write_exports(home / "bare", ("basic",))
        with ExitStack() as scope:
            started = list[Served]()
            with lfx_serve(home / "bare", _new(home / "first"), {**model.environment, **more}):
                pass  # it has compiled what it imports, which takes memory
            for number in range(servers):
                place = _new(home / f"serve-{number}")
                started.append(scope.enter_context(lfx_serve(home / "bare", place, {**model.environment, **more})))
                await started[-1].measure("basic", in_flight=1, seconds=3600, hurry=lambda: None, events=RUNS)
            theirs = sum(pss_of(server.family) for server in started) * PROCESSES / servers
    values: dict[str, Value] = {
        "Headrace PSS MB": ours,
        "Headrace processes": len(private),
        "Headrace largest private MB": max(private),
        f"{PROCESSES} lfx serve PSS MB": theirs,
    }
    return Row(
        f"{PROCESSES} processes, {RUNS} runs each{what}: PSS, to {PROCESSES} lfx serve",
        values,
        ours / theirs,
        "<= 0.25",
        load,
    )
