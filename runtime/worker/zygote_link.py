"""The supervisor's side of its line to the zygote: children are asked for, and their starts and ends are heard of."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable

import structlog

from runtime.worker.zygote import ChildSpec

log = structlog.get_logger("headrace.worker")


class ZygoteLink:
    """One end of the control socket. ``forked`` gets a name and a pid, ``exited`` a pid and an exit code."""

    def __init__(
        self, control: socket.socket, *, forked: Callable[[str, int], None], exited: Callable[[int, int], None]
    ) -> None:
        self.ready = asyncio.Event()
        """Set once the engine is imported and the flows are loaded."""
        self.gone = asyncio.Event()
        """Set once the zygote has ended."""
        self._control = control
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

    def fork(self, spec: ChildSpec, line: socket.socket) -> None:
        """Ask for a child; ``line`` is its end of the channel to the supervisor."""
        try:
            socket.send_fds(self._control, [spec.dump()], [line.fileno()])
        except OSError as error:
            log.error("zygote.unreachable", error=repr(error))  # noqa: TRY400  it has ended, and is heard of soon
            self.gone.set()

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
        if "forked" in message:
            self._forked(message["forked"], message["pid"])
        if "exited" in message:
            self._exited(message["exited"], message["status"])
