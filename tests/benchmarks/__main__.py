"""``make bench``: runs the benchmarks, prints a table, writes JSON to tests/benchmarks/results.

``python -m tests.benchmarks [NAME...] [--quick]``; without names, all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.figures import Row, Value

RESULTS = Path(__file__).parent / "results"
BENCHMARKS = (
    "latency",
    "idle",
    "gateway",
    "streams",
    "flows",
    "noop",
    "growth",
    "memory",
    "startup",
    "recovery",
    "soak",
)


def main() -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all, if none is given")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    # What it has started ends with it, however it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    figures, took = dict[str, list[Row]](), dict[str, float]()
    for name in asked.names or BENCHMARKS:
        began = time.monotonic()
        figures[name] = asyncio.run(importlib.import_module(f"tests.benchmarks.{name}").measure(quick=asked.quick))
        took[name] = round(time.monotonic() - began, 1)
        show(name, figures[name], took[name])
        write(figures, took)
    return 0


def show(name: str, rows: list[Row], seconds: float) -> None:
    """A table of one benchmark."""
    table = Table("figure", "ratio", "target", "reached", "values", "load", title=f"{name} ({seconds:g} s)")
    for row in rows:
        reached = {True: "yes", False: "NO", None: ""}[row.reached]
        values = ", ".join(f"{key} {said(value)}" for key, value in row.values.items())
        ratio = "" if row.ratio is None else said(row.ratio)
        table.add_row(row.figure, ratio, row.target, reached, values, f"{row.load:g}")
    Console(width=None if sys.stdout.isatty() else 240).print(table)


def said(value: Value) -> str:
    """A number with three digits that matter."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def write(figures: dict[str, list[Row]], took: dict[str, float]) -> None:
    """All that was found so far, as JSON."""
    RESULTS.mkdir(exist_ok=True)
    machine = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "at": int(time.time()),
    }
    told = {"machine": machine, "seconds": took, "figures": {n: [r.as_json() for r in f] for n, f in figures.items()}}
    (RESULTS / "latest.json").write_text(json.dumps(told, indent=2), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
