"""Whole workers as processes: a supervisor, its zygote and its children, in a session of their own.

Run as a module, this is the worker; its engine writes a ledger of what each run did to the world.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from runtime.engine.base import ChatHistory, Emit, Engine, LoadedFlow, RunOutput, RunRequest
from tests.support.ledger import LedgerEngine

ROOT = Path(__file__).parents[2]

KILLED = -signal.SIGKILL


def boot() -> float:
    """Seconds of the clock that ledger lines are stamped with."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ChaosEngine(LedgerEngine):
    """The ledger engine, that also tells of runs that failed."""

    async def run(self, flow: LoadedFlow, request: RunRequest, history: ChatHistory, emit: Emit) -> RunOutput:
        try:
            output: RunOutput = await super().run(flow, request, history, emit)
        except Exception:
            self._write("failed", request)
            raise
        return output


class Pod:
    """One worker, from its start to its end. Its log is a file of JSON lines."""

    def __init__(self, name: str, url: str, folder: Path, *, engine: str, worker: Mapping[str, Any]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.asked_to_end = False
        """Whether chaos has ended it, or has told it to end."""
        asked = {
            "url": url,
            "flows": str(folder / "flows"),
            "ledger": str(folder / "ledger"),
            "engine": engine,
            "worker": dict(worker),
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.pods", json.dumps(asked)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
            )  # fmt: skip
        self.started = boot()

    @property
    def pid(self) -> int:
        """The supervisor's, and the whole group's."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    @property
    def zygote(self) -> int | None:
        """The zygote's pid, while there is one."""
        return next(iter(_children(self.pid)), None)

    @property
    def children(self) -> list[int]:
        """The children's pids, those that run one event alone among them."""
        zygote = self.zygote
        return _children(zygote) if zygote is not None else []

    @property
    def reading(self) -> bool:
        """Whether one of its children has read."""
        return any(line["event"] == "child.reading" for line in self.lines())

    @property
    def names(self) -> dict[int, str]:
        """Consumer names of all the children it has had, by pid."""
        return {line["pid"]: line["worker"] for line in self.lines() if line["event"] == "child.reading"}

    def lines(self, about: str = "child.") -> list[dict[str, Any]]:
        """Lines of its log that hold a text."""
        found = []
        with self.log.open(encoding="utf-8", errors="replace") as log:
            for line in log:
                if about in line and line.startswith("{"):
                    with suppress(ValueError):
                        found.append(json.loads(line))
        return found

    def signal(self, number: int) -> None:
        """Send the supervisor a signal."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def signal_all(self, number: int) -> None:
        """Send it to every process of the worker at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        """End all of it, however it stands."""
        self.asked_to_end = True
        self.signal_all(signal.SIGCONT)
        self.signal_all(signal.SIGKILL)
        self._process.wait(10)


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children() if child.status() != psutil.STATUS_ZOMBIE]
    except psutil.Error:
        return []


def _engine(name: str, ledger: str) -> Engine:
    if name == "ledger":
        return ChaosEngine(ledger)
    from runtime.engine.langflow import LangflowEngine

    return LangflowEngine()


def main() -> int:
    """Run a worker as the command line's JSON says."""
    from runtime.settings import LogSettings, RedisSettings, Settings, WorkerSettings
    from runtime.telemetry import logs
    from runtime.worker.process import Worker
    from runtime.worker.zygote import die_with_parent

    die_with_parent(signal.SIGKILL)
    asked = json.loads(sys.argv[1])
    logs.configure(LogSettings(format="json"))
    redis = RedisSettings(connect_timeout=2.0, command_timeout=4.0)
    settings = Settings(worker=WorkerSettings(**asked["worker"]), redis=redis)
    return Worker(settings, asked["url"], Path(asked["flows"]), _engine(asked["engine"], asked["ledger"])).run()


if __name__ == "__main__":
    sys.exit(main())
