"""From XADD to the result event, one event at a time on an idle worker, beside the engine called directly."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.benchmarks.figures import Row, quiet
from tests.benchmarks.flows import write_exports
from tests.benchmarks.peers import stock
from tests.benchmarks.stack import stack


async def measure(*, quick: bool = False) -> list[Row]:
    """The hello flow end to end, and the ratio of its wall time to that of the engine alone."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "flows"
        write_exports(folder, ("hello",))
        with stack(folder) as running, stock(folder, Path(home), {}) as engine:
            load = quiet()
            mine = await running.measure("hello", in_flight=1, seconds=1.0 if quick else 5.0)
            theirs = engine.measure("hello", in_flight=1, events=20 if quick else 200)
    values = {**mine.values("end to end"), **theirs.values("engine alone")}
    return [Row("hello: wall, to the engine alone", values, theirs.rate / mine.rate, load=load)]
