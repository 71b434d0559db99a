"""Whole workers by the dozen: a process that has imported everything forks each, so that a start costs no import.

Each is a worker as ``headrace worker`` starts one (supervisor, zygote, children), with the ledger engine, in a process
group of its own. One request a line on stdin, one answer or end a line on stdout.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.ledger import LedgerEngine


class Nursery:
    """The side that asks."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, folder: Path) -> None:
        self._process = process
        self._url = url
        self._folder = folder
        self._born: asyncio.Queue[int] = asyncio.Queue()
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._reading = asyncio.create_task(self._read())

    async def start(self, *, only: str = "", **worker: Any) -> int:
        """A worker on ``folder``/flows, which writes ``folder``/ledger; its pid, which is its group's too."""
        asked = {"url": self._url, "folder": str(self._folder), "only": only, "worker": worker}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        return await self._born.get()

    async def ended(self, pid: int) -> int:
        """Its exit code, once it has ended."""
        return await self._end(pid)

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to all of it."""
        with suppress(ProcessLookupError):
            os.killpg(pid, number)

    async def close(self) -> None:
        """End every worker that is left."""
        for pid, end in self._ends.items():
            if not end.done():
                self.kill(pid)
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        self._reading.cancel()

    def _end(self, pid: int) -> asyncio.Future[int]:
        return self._ends.setdefault(pid, asyncio.get_running_loop().create_future())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told = json.loads(line)
            if "born" in told:
                self._end(told["born"])
                self._born.put_nowait(told["born"])
            else:
                self._end(told["ended"]).set_result(told["code"])


@asynccontextmanager
async def nursery(url: str, folder: Path) -> AsyncIterator[Nursery]:
    """A nursery for workers on one Redis and one folder, which end with it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.nursery", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    made = Nursery(process, url, folder)
    try:
        yield made
    finally:
        await made.close()


def _worker(asked: dict[str, Any]) -> int:
    from runtime.settings import LogSettings, Settings, WorkerSettings
    from runtime.telemetry import logs
    from runtime.worker.process import Worker
    from runtime.worker.zygote import die_with_parent

    die_with_parent(signal.SIGKILL)
    folder = Path(asked["folder"])
    os.setsid()
    log = os.open(folder / f"worker-{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    logs.configure(LogSettings(format="json"))
    only = frozenset({asked["only"]}) if asked["only"] else frozenset[str]()
    settings = Settings(worker=WorkerSettings(**asked["worker"]))
    return Worker(settings, asked["url"], folder / "flows", LedgerEngine(str(folder / "ledger")), only).run()


def main() -> int:
    """The side that forks, until its stdin ends."""
    import select

    import runtime.worker.process  # noqa: F401  what every worker would import

    wake, awake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(awake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    alive: set[int] = set()
    while True:
        readable, _, _ = select.select([0, wake], [], [])
        if wake in readable:
            os.read(wake, 4096)
            _tell_ends(alive)
        if 0 in readable:
            # Unbuffered, so that select knows all; a request is short enough to come whole.
            if not (lines := os.read(0, 1 << 16)):
                return 0
            for line in lines.splitlines():
                if (pid := os.fork()) == 0:
                    code = 1
                    try:
                        code = _worker(json.loads(line))
                    finally:
                        os._exit(code)
                alive.add(pid)
                _say(born=pid)


def _tell_ends(alive: set[int]) -> None:
    for pid in list(alive):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            alive.discard(pid)
            _say(ended=pid, code=os.waitstatus_to_exitcode(status))


def _say(**told: int) -> None:
    os.write(1, json.dumps(told).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
