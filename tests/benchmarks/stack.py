"""A Valkey and a worker as a user would start them, for measuring from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from runtime.broker.embedded import EmbeddedValkey
from tests.support.harness import clean_environment

HEADRACE = Path(sys.executable).with_name("headrace")


@dataclass(frozen=True)
class Stack:
    """What runs."""

    url: str
    worker: int
    valkey: int


@contextmanager
def stack(flows: Path, *options: str) -> Iterator[Stack]:
    """An embedded Valkey and one `headrace worker` on ``flows``, once it is ready."""
    with tempfile.TemporaryDirectory() as home:
        valkey = EmbeddedValkey.start(Path(home) / "data")
        try:
            process = subprocess.Popen(
                [HEADRACE, "worker", "--flows", str(flows), "--redis-url", valkey.url, *options],
                env=clean_environment(Path(home)),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if "ready" in line:
                        break
                else:
                    raise RuntimeError("the worker ended before it was ready")
                yield Stack(valkey.url, process.pid, _server_pid(valkey.url))
            finally:
                process.terminate()
                process.wait(30)
        finally:
            valkey.stop()


def _server_pid(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


def quantile(values: list[float], q: float) -> float:
    """The q-quantile, nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))
