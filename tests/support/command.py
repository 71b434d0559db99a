"""The command ``headrace`` as a user runs it: a process of its own, its output, its exit code."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from unittest import mock

from runtime.cli import main as cli
from tests.support.harness import clean_environment

HEADRACE = Path(sys.executable).with_name("headrace")

START = 60.0
"""Seconds that a worker or `up` may take until it is ready."""

FAST = {
    "HEADRACE_WORKER__SWEEP_INTERVAL": "0.5",
    "HEADRACE_WORKER__LEASE": "5",
    "HEADRACE_WORKER__GRACE": "5",
    "HEADRACE_WORKER__POLL_INTERVAL": "0.5",
}


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


def headrace(*words: str, home: Path, stdin: str | None = None, **environ: str) -> Done:
    """Run a command to its end, in ``home`` and with nothing but ``environ`` of ours in the environment."""
    done = subprocess.run(
        [HEADRACE, *words],
        input=stdin or "",
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        cwd=home,
        env=clean_environment(home, **environ),
    )
    return Done(done.returncode, done.stdout, done.stderr)


def in_process(*words: str, **environ: str) -> Done:
    """Run a command in this process: its code, without the second that its imports take. Not where stdin matters."""
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, environ), redirect_stdout(out), redirect_stderr(err):
        code = cli.run(words)
    return Done(code, out.getvalue(), err.getvalue())


class Running:
    """A command that goes on. Its output is kept, and can be waited for."""

    def __init__(self, *words: str, home: Path, **environ: str) -> None:
        self._process = subprocess.Popen(
            [HEADRACE, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            cwd=home,
            env=clean_environment(home, **{**FAST, "PYTHONFAULTHANDLER": "1", **environ}),
            start_new_session=True,
            # As in a terminal: where the tests run in the background, a shell has SIGINT ignored for them and theirs.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  no lock is taken there
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self._process.stdout, self.out), (self._process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait_for(self, text: str, *, stream: str = "out", timeout: float = START) -> str:
        """The first line of stdout (or ``err``) with ``text`` in it."""
        lines = self.err if stream == "err" else self.out

        def found() -> bool:
            return any(text in line for line in lines) or self._over()

        with self._changed:
            self._changed.wait_for(found, timeout)
            line = next((line for line in lines if text in line), None)
        assert line is not None, f"no {text!r} in {self.out}, stderr: {self.err}"
        return line

    def stop(self, number: int = signal.SIGTERM, *, timeout: float = 30) -> int:
        """Send a signal and wait; the exit code."""
        if not self.ended:
            self._process.send_signal(number)
        return self.wait(timeout=timeout)

    def wait(self, *, timeout: float = 30) -> int:
        """Wait for its end; the exit code."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # with PYTHONFAULTHANDLER it tells where it stands
            self._process.wait(timeout)
            for reader in self._readers:
                reader.join(timeout)
            raise AssertionError("did not end:\n" + "\n".join(self.err[-60:])) from None
        for reader in self._readers:
            reader.join(timeout)
        return code

    def close(self) -> None:
        """End it and whatever it left in its session."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait()

    def _over(self) -> bool:
        return not any(reader.is_alive() for reader in self._readers)

    def _read(self, stream: IO[str], lines: list[str]) -> None:
        for line in stream:
            with self._changed:
                lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()
        stream.close()


@contextmanager
def running(*words: str, home: Path, **environ: str) -> Iterator[Running]:
    """A command that goes on until the block ends."""
    command = Running(*words, home=home, **environ)
    try:
        yield command
    finally:
        if not command.ended:
            with suppress(subprocess.TimeoutExpired):
                command.stop()
        command.close()


@contextmanager
def worker(url: str, flows: Path, home: Path, *words: str, **environ: str) -> Iterator[Running]:
    """A `headrace worker` with the echo engine, once it is ready."""
    words = ("worker", "--flows", str(flows), "--engine", "echo", *words)
    with running(*words, home=home, REDIS_URL=url, **environ) as process:
        process.wait_for("ready")
        yield process
