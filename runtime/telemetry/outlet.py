"""Output that cannot hold the process up: where whoever reads it has stopped, lines are lost, and counted.

A full pipe blocks whoever writes to it, for ever if its reader is stuck: a worker would then renew no lease, answer no
probe and hear no signal, for the sake of a log line. So stdout and stderr are written without blocking. A reader that
is only slow is waited for, but for a small share of the time and no more.
"""

from __future__ import annotations

import io
import os
import select
import socket
import stat
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer

PATIENCE = 0.25
"""Seconds that output may hold the process up at a time."""

SHARE = 0.05
"""Share of the time that it may take in all."""

REST = 64 * 1024
"""Bytes of a line that is half written to be kept at most, so that the next line begins on its own."""


class Outlet(io.BufferedIOBase):
    """Takes whatever is written to it; what the descriptor does not take in time is dropped."""

    def __init__(self, descriptor: int, *, patience: float = PATIENCE, share: float = SHARE) -> None:
        self._descriptor = descriptor
        self._patience = self._allowed = patience
        self._share = share
        self._earned = time.monotonic()
        self._first = _stat(descriptor)
        self._own: int | None = None
        self._rest = b""
        self.lost = 0
        """How many writes were dropped."""
        self.flows = True
        """Whether the last write went through."""
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._forked)

    def write(self, data: Buffer, /) -> int:
        """Write it, or drop it: that nobody takes it is no fault of the code that says it."""
        view = bytes(data)
        with self._lock:
            self._earn()
            left = self._put(self._rest)
            self._rest = left[:]
            if not left:
                left = self._put(view)
                if 0 < len(left) < len(view):
                    self._rest, left = left[:REST].rstrip(b"\n") + b"\n", b""
            else:
                left = view
            self.flows = not left
            self.lost += not self.flows
        return len(view)

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The descriptor that it stands for."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether a person looks."""
        return os.isatty(self._descriptor)

    def _put(self, data: bytes) -> bytes:
        """Write as much as goes; what is left."""
        while data:
            try:
                data = data[self._write(data) :]
            except BlockingIOError:
                if not self._wait():
                    break
            except OSError:  # the other side has hung up, or the disk is full
                break
        return data

    def _write(self, data: bytes) -> int:
        kind = os.fstat(self._descriptor)
        if stat.S_ISSOCK(kind.st_mode):
            with socket.socket(fileno=os.dup(self._descriptor)) as line:
                return line.send(data, socket.MSG_DONTWAIT)
        if not stat.S_ISFIFO(kind.st_mode) and not stat.S_ISCHR(kind.st_mode):
            return os.write(self._descriptor, data)
        if self._first is not None and os.path.samestat(self._first, kind):
            own = self._own = self._own if _is(self._own, kind) else self._reopened()
            return self._anyhow(data) if own is None else os.write(own, data)
        # Put in its place for a while: whoever reads that waits for its end, which comes when nobody holds it open.
        if (brief := self._reopened()) is None:
            return self._anyhow(data)
        try:
            return os.write(brief, data)
        finally:
            os.close(brief)

    def _reopened(self) -> int | None:
        """The same pipe or terminal on a description of its own; None where that is refused.

        Not to block is a property of the description, and the descriptor shares its one with strangers.
        """
        with suppress(OSError):
            return os.open(f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        return None

    def _anyhow(self, data: bytes) -> int:
        """Write as much as there is room for: the pipe of another user cannot be opened anew."""
        if not self._ready(0):
            raise BlockingIOError
        return os.write(self._descriptor, data[: select.PIPE_BUF])

    def _ready(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(seconds * 1000))

    def _wait(self) -> bool:
        """Until more can be written; False once this has taken its share of the time."""
        began = time.monotonic()
        ready = self._allowed > 0 and self._ready(self._allowed)
        self._allowed -= time.monotonic() - began
        return ready

    def _earn(self) -> None:
        now = time.monotonic()
        self._allowed = min(self._patience, self._allowed + (now - self._earned) * self._share)
        self._earned = now

    def _forked(self) -> None:
        self._lock = threading.RLock()


def _stat(descriptor: int) -> os.stat_result | None:
    with suppress(OSError):
        return os.fstat(descriptor)
    return None


def _is(own: int | None, kind: os.stat_result) -> bool:
    """Whether it is that still: code of a component may have closed it, and its number may be a connection's by now."""
    found = None if own is None else _stat(own)
    return found is not None and os.path.samestat(found, kind)


class _Stream(io.TextIOWrapper):
    """Text on an outlet. It stays open: a component that closes it would have every other one that prints fail."""

    def close(self) -> None:
        self.flush()


class _Process:
    stderr: TextIO | None = None
    """The guarded one."""


def guard() -> None:
    """Have this process, and those that it forks, write stdout and stderr without ever being held up by it."""
    sys.stdout, sys.stderr = (_guarded(stream) for stream in (sys.stdout, sys.stderr))
    _Process.stderr = sys.stderr


def stderr() -> TextIO:
    """Where the log goes: the guarded stderr if there is one, whatever a component has put in its place."""
    return _Process.stderr or sys.stderr


def lost() -> int:
    """How many writes to stderr were dropped, where it is read again; else 0."""
    outlet = getattr(_Process.stderr, "buffer", None)
    return outlet.lost if isinstance(outlet, Outlet) and outlet.flows else 0


def _guarded(stream: TextIO) -> TextIO:
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return stream  # there is none, or it is no file
    return _Stream(cast(Any, Outlet(descriptor)), encoding=stream.encoding, errors=stream.errors, line_buffering=True)
