"""``make bench``: runs every benchmark, prints a table, writes JSON to tests/benchmarks/results."""

from __future__ import annotations

import asyncio
import json
import platform
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks import idle, latency, recovery

RESULTS = Path(__file__).parent / "results"
BENCHMARKS = {"latency": latency.measure, "idle": idle.measure, "recovery": recovery.measure}


def main() -> int:
    """Run the named benchmarks, or all."""
    names = sys.argv[1:] or list(BENCHMARKS)
    figures = {name: asyncio.run(BENCHMARKS[name]()) for name in names}
    table = Table("benchmark", "figure", "value", title="Headrace benchmarks")
    for name, rows in figures.items():
        for figure, value in rows.items():
            table.add_row(name, figure, f"{value:.3f}" if isinstance(value, float) else str(value))
    Console().print(table)
    RESULTS.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "machine": platform.machine(), "at": int(time.time())}
    (RESULTS / "latest.json").write_text(json.dumps({"machine": machine, "figures": figures}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
