"""A taskiq worker on its Redis stream broker, in an environment of its own: its redis-py is newer than Langflow's.

Headrace's own lock is left alone: the packages are installed from the package index into a temporary folder when the
benchmark runs. Without an index, the benchmark says so and leaves the comparison out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import redis

from tests.benchmarks.figures import family
from tests.benchmarks.stack import started

PACKAGES = ("taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis")
GROUP = "taskiq"

_TASKS = """
import os
from taskiq import TaskiqEvents
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

broker = RedisStreamBroker(os.environ["PEER_URL"], queue_name="taskiq", consumer_id="0")
if os.environ.get("PEER_RESULTS"):
    broker = broker.with_result_backend(RedisAsyncResultBackend(os.environ["PEER_URL"], result_ex_time=600))

@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def told(_):
    print("ready", flush=True)

@broker.task(task_name="echo")
async def echo(text: str) -> str:
    return text
"""


@dataclass(frozen=True)
class Taskiq:
    """A worker that runs."""

    pid: int
    stream: str = "taskiq"

    @property
    def family(self) -> list[psutil.Process]:
        """Its manager and the one process that runs tasks."""
        return family(self.pid)

    def message(self, number: int) -> str:
        """A task as taskiq's own client writes it."""
        labels = {"task_id": f"{number:032x}", "task_name": "echo", "labels": {}, "labels_types": {}}
        return json.dumps({**labels, "args": ["What is 6 times 7?"], "kwargs": {}})

    def done(self, client: redis.Redis) -> int:
        """How many tasks have been acknowledged."""
        [group] = client.xinfo_groups(self.stream)
        return int(group["entries-read"]) - int(group["pending"])


def install(folder: Path) -> Path | None:
    """An environment with taskiq; its ``bin``, or None where the packages cannot be had."""
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        sys.stderr.write(f"no taskiq to compare with: {done.stderr[-500:]}\n")
        return None
    return folder / "bin"


@contextmanager
def taskiq(binaries: Path, url: str, home: Path, *, results: bool, logs: bool) -> Iterator[Taskiq]:
    """A worker with one process and 40 tasks at once.

    ``results``: it keeps what they return; ``logs``: it tells of each task, as it does unless told otherwise.
    """
    home.mkdir(parents=True, exist_ok=True)
    (home / "peer_tasks.py").write_text(_TASKS)
    words: Sequence[str | Path] = [
        *(binaries / "taskiq", "worker", "peer_tasks:broker", "--workers", "1", "--max-async-tasks", "40"),
        *("--log-level", "INFO" if logs else "ERROR", "--app-dir", str(home)),
    ]
    environment = {"PEER_URL": url, "PYTHONPATH": str(home), "PATH": os.environ["PATH"]}
    if results:
        environment["PEER_RESULTS"] = "1"
    with started(words, home, "ready", environment) as process:
        yield Taskiq(process.pid)
