"""From the command to the first event that could run: ``headrace up`` beside ``lfx serve``, and a child's fork.

Both serve the example flows of this repository; those that need a model get the stub's address.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tests.benchmarks.figures import Row, Value, quantile, quiet
from tests.benchmarks.flows import EXAMPLES
from tests.benchmarks.peers import RESTRICTED, lfx_serve
from tests.benchmarks.stack import HEADRACE, started
from tests.benchmarks.stub import stub
from tests.support.harness import clean_environment

VARIANTS = {"example flows": {}, "example flows, installed components only": RESTRICTED}
"""What is started, and with which settings of Langflow's beside the model's."""


async def measure(*, quick: bool = False) -> list[Row]:
    """Each a few times, in turn; the medians are compared. The first start compiles what it imports: it is left out."""
    times = 1 if quick else 3
    load = quiet()
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as folder, stub() as model:
        home = Path(folder)
        for what, more in VARIANTS.items():
            ours, theirs = list[float](), list[float]()
            given = {**model.environment, **more}
            for number in range(times + 1):
                place = _new(home / f"{len(rows)}-{number}")
                ours.append(_up(_new(place / "up"), given))
                with lfx_serve(EXAMPLES, _new(place / "serve"), given) as server:
                    theirs.append(server.seconds)
            up, serve = quantile(ours[1:], 0.5), quantile(theirs[1:], 0.5)
            values: dict[str, Value] = {"headrace up s": up, "lfx serve s": serve}
            rows.append(Row(f"{what}, to ready: seconds, to lfx serve", values, up / serve, "<= 0.5", load))
        forks = _forks(home / "forks", model.environment, times=3 if quick else 8)
    fork = quantile(forks, 0.5)
    told: dict[str, Value] = {"p50 ms": fork, "worst ms": max(forks)}
    return [*rows, Row("fork to a child that reads: p50, to 1 ms", told, fork, "<= 50", load)]


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _up(home: Path, environment: dict[str, str]) -> float:
    began = time.perf_counter()
    with started([HEADRACE, "up", "--flows", str(EXAMPLES), "--data", str(home / "data")], home, "ready", environment):
        return time.perf_counter() - began


def _forks(home: Path, environment: dict[str, str], *, times: int) -> list[float]:
    """From a child's fork to its first read, in ms, as its process's age and the log tell: 10 ms fine."""
    home.mkdir()
    shutil.copytree(EXAMPLES, home / "flows")
    words = [HEADRACE, "up", "--flows", str(home / "flows"), "--data", str(home / "data")]
    process = subprocess.Popen(
        words,
        env=clean_environment(home, **environment, HEADRACE_LOG__FORMAT="json"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        found = list[float]()
        for pid in _reading(process.stderr):
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            found.append((now - _born(pid)) * 1000)
            if len(found) > times:
                return found[1:]  # the first came with the worker's own start
            time.sleep(0.5)
            os.kill(pid, signal.SIGKILL)
        raise RuntimeError("the worker ended")
    finally:
        process.terminate()
        process.wait(30)


def _reading(lines: Iterable[str]) -> Iterable[int]:
    """The process ids of children, as they begin to read."""
    for line in lines:
        if "child.reading" in line:
            yield int(json.loads(line)["pid"])


def _born(pid: int) -> float:
    """When a process was forked, in seconds since the machine's start."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")
