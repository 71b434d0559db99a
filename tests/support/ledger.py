"""An engine whose runs write a ledger of side effects, and a worker with it as a process of its own.

Each line of the ledger is one JSON object appended with one write, so that no death tears it: what the outside world
would have seen of a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.engine.echo import EchoEngine
from runtime.errors import RunFailed
from runtime.settings import Settings, WorkerSettings
from shared_models.dead_letter import ErrorInfo


class LedgerEngine(EchoEngine):
    """Echo that writes the ledger. The payload may ask to ``exit``, to ``quit`` (exit code 0), ``segv``, ``block`` (s),
    ``sleep`` (s), to take ``naps``, to ``break`` what every delivery needs, to ``swallow`` its cancellation or to fail.

    ``after`` (s) comes before all of these; so does waiting ``until`` a file is there. ``hold`` (s) holds the
    interpreter itself, from a thread. Loading the routes ``stuck`` and ``frozen`` never ends.
    """

    def __init__(self, ledger: str, *, loads: float = 0.0) -> None:
        self._ledger = ledger
        self._loads = loads

    async def prepare(self, *, concurrency: int) -> None:
        if self._loads:
            print("loading", flush=True)
            time.sleep(self._loads)  # as an import does: nothing else runs meanwhile

    async def load(self, source):
        if source.route == "stuck":
            await asyncio.Event().wait()
        if source.route == "frozen":
            time.sleep(600)
        return await super().load(source)

    async def run(self, flow, request, history, emit):
        self._write("start", request)
        payload = request.payload
        await asyncio.sleep(float(payload.get("after", 0)))
        while (path := payload.get("until")) is not None and not Path(path).exists():
            await asyncio.sleep(0.02)
        if payload.get("exit"):
            os._exit(9)
        if payload.get("break"):
            importlib.import_module("runtime.worker.intake").decode = None
        if payload.get("quit"):
            os._exit(0)
        if payload.get("segv"):
            ctypes.string_at(0)
        while payload.get("swallow"):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        for _ in range(int(payload.get("naps", 0))):
            await asyncio.sleep(0.1)  # as a run that talks to others: it needs many turns of the loop
        if (seconds := payload.get("hold")) is not None:
            await asyncio.to_thread(ctypes.PyDLL(None).sleep, int(seconds))  # without letting the interpreter go
        if (seconds := payload.get("block")) is not None:
            self._block(float(seconds))
        if request.attempt <= int(payload.get("fail_first", 0)):
            raise RunFailed(ErrorInfo(code="asked", message="asked to fail", retryable=True))
        try:
            output = await super().run(flow, request, history, emit)
        except asyncio.CancelledError:
            self._write("cancelled", request)
            raise
        self._write("end", request)
        return output

    def _block(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.05)

    def _write(self, what: str, request: Any) -> None:
        line = {"what": what, "event": request.event_id, "attempt": request.attempt, "pid": os.getpid(),
                "at": time.clock_gettime(time.CLOCK_BOOTTIME)}  # fmt: skip
        descriptor = os.open(self._ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """Every line that was written."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def starts(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    """Every execution that began (of one event)."""
    return [line for line in read_ledger(path) if line["what"] == "start" and event in (None, line["event"])]


class WorkerProcess:
    """A worker with the ledger engine, as a process group of its own."""

    def __init__(
        self, url: str, flows: Path, ledger: Path, worker: Mapping[str, Any], patch: Mapping[str, Any]
    ) -> None:
        asked = {"url": url, "flows": str(flows), "ledger": str(ledger), "worker": dict(worker), "patch": dict(patch)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ledger", json.dumps(asked)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The supervisor's."""
        return self._process.pid

    @property
    def zygote(self) -> int:
        """The zygote's pid."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])

    @property
    def ended(self) -> int | None:
        """The supervisor's exit code; None while it runs."""
        return self._process.poll()

    def wait_for(self, text: str, *, count: int = 1, timeout: float = 30.0) -> list[str]:
        """The lines that hold ``text``, once there are ``count``."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: [x for x in self.lines if text in x] if sum(text in x for x in self.lines) >= count else None,
                timeout,
            )
        assert found, f"no {count} lines with {text!r} in:\n" + "\n".join(self.lines[-50:])
        return found

    def children(self) -> list[int]:
        """Pids of the children that read, in the order of their starts; dead ones are left out."""
        pids = [int(x.split("pid=")[1].split()[0]) for x in self.lines if "child.reading" in x]
        return [pid for pid in pids if _alive(pid)]

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send the supervisor a signal."""
        os.kill(self.pid, number)

    def kill_all(self, number: int = signal.SIGKILL) -> None:
        """Send it to the whole group: what the end of a pod looks like."""
        os.killpg(self.pid, number)

    def ended_with(self, timeout: float = 30.0) -> int:
        """The exit code, once it has ended by itself."""
        return self._process.wait(timeout)

    def end(self, timeout: float = 30.0) -> int:
        """SIGTERM; the exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        return self._process.wait(timeout)

    def close(self) -> None:
        """End it, however it stands."""
        if self._process.poll() is None or self.children():
            try:
                os.killpg(self.pid, signal.SIGCONT)
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._process.wait(10)
        self._reader.join(10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()


@contextmanager
def worker_process(
    url: str,
    flows: Path,
    ledger: Path,
    *,
    reading: int | None = None,
    patch: Mapping[str, Any] | None = None,
    **worker: Any,
) -> Iterator[WorkerProcess]:
    """A worker, from when all of its children read. ``patch`` sets constants, by their dotted names."""
    fast = {"lease": 3.0, "sweep_interval": 0.3, "reconcile_interval": 0.5, "poll_interval": 0.2, "grace": 5.0}
    process = WorkerProcess(url, flows, ledger, {**fast, **worker}, patch or {})
    try:
        count = worker.get("processes", 1) if reading is None else reading
        if count:
            process.wait_for("child.reading", count=count)
        yield process
    finally:
        process.close()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def main() -> int:
    """Run a worker as the command line's JSON says."""
    from runtime.settings import LogSettings
    from runtime.telemetry import logs
    from runtime.worker import execution
    from runtime.worker.process import Worker

    asked = json.loads(sys.argv[1])
    logs.configure(LogSettings(format="console"))
    engine = LedgerEngine(asked["ledger"], loads=asked["worker"].pop("loads", 0.0))
    execution.CANCEL_GRACE = asked["worker"].pop("cancel_grace", execution.CANCEL_GRACE)
    for name, value in asked["patch"].items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, value)
    settings = Settings(worker=WorkerSettings(**asked["worker"]))
    return Worker(settings, asked["url"], Path(asked["flows"]), engine).run()


if __name__ == "__main__":
    sys.exit(main())
