"""The supervisor's side of its line to the zygote: children are asked for, and their starts and ends are heard of."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from runtime.worker.board import boot_time
from runtime.worker.punctual import STEP_MARGIN
from runtime.worker.zygote import ChildSpec

log = structlog.get_logger("headrace.worker")

PING = 15.0
"""Seconds that the zygote has to answer that it is there."""

PINGS_MISSED = 2
"""Answers in a row that may not come. One may be late where this process was stopped itself, and is back first."""


class ZygoteLink:
    """One end of the control socket. ``forked`` gets a name and a pid, ``exited`` a pid and an exit code."""

    def __init__(
        self,
        control: socket.socket,
        pid: int,
        *,
        forked: Callable[[str, int], None],
        exited: Callable[[int, int], None],
    ) -> None:
        self.ready = asyncio.Event()
        """Set once the engine is imported and the flows are loaded."""
        self.gone = asyncio.Event()
        """Set once the zygote has ended."""
        self.hung = False
        """It was killed, since it stood still."""
        self._control = control
        self._pid = pid
        self._step = ""
        self._step_since = boot_time()
        self._answered = 0
        self._forked = forked
        self._exited = exited

    def open(self) -> None:
        """Begin to listen, on the running loop."""
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._hear)

    def close(self) -> None:
        """Hang up: it ends."""
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()

    async def watch(self, limit: float) -> None:
        """Kill it when a step of its takes longer than ``limit`` seconds, or it does not answer any more."""
        missed = asked = 0
        while not self.gone.is_set():
            began = boot_time()
            while boot_time() - began < PING or not self.ready.is_set():
                await asyncio.sleep(min(1.0, limit / 4))
                if self._step and (seconds := boot_time() - self._step_since) > limit + STEP_MARGIN:
                    self._kill(seconds, self._step)
                    return
            missed = 0 if self._answered == asked else missed + 1
            if missed > PINGS_MISSED:
                self._kill(missed * PING, "answering the supervisor")
                return
            asked += 1
            self._send({"ping": asked})

    def _kill(self, seconds: float, step: str) -> None:
        log.error("zygote.hangs", pid=self._pid, step=step, seconds=round(seconds, 1))
        self.hung = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def fork(self, spec: ChildSpec, line: socket.socket) -> bool:
        """Ask for a child; ``line`` is its end of the channel to the supervisor. False: nobody hears of it."""
        return self._send(spec.message(), line)

    def _send(self, message: Mapping[str, Any], *lines: socket.socket) -> bool:
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], [line.fileno() for line in lines])
        except BlockingIOError:
            log.warning("zygote.busy")  # it does not read; the watch sees to that
        except OSError as error:
            log.error("zygote.unreachable", error=repr(error))  # noqa: TRY400  it has ended, and is heard of soon
            self.gone.set()
        else:
            return True
        return False

    def _hear(self) -> None:
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            self.gone.set()
            return
        message = json.loads(data)
        if "ready" in message:
            self.ready.set()
        if "step" in message:
            self._step, self._step_since = message["step"], boot_time()
        if "pong" in message:
            self._answered = message["pong"]
        if "forked" in message:
            self._forked(message["forked"], message["pid"])
        if "exited" in message:
            self._exited(message["exited"], message["status"])
