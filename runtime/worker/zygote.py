"""The zygote: it imports the engine and loads the flows once, then forks a child whenever the supervisor asks.

It has no event loop, no thread and no connection when it forks, so that a child begins with nothing that is half of
something; it shares its memory with every child. It also waits for its children, and tells how each one ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from runtime.telemetry.resident import give_back

PR_SET_PDEATHSIG = 1

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that end a worker. SIGHUP, where its terminal closes: all of its processes get that one."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What a child is to be: its consumer name, its slot on the board, and the first entry it runs alone, if any."""

    name: str
    slot: int
    alone: tuple[str, str] | None = None
    """Route and entry id."""
    exclusive: str | None = None
    """The one route that this process is for."""

    def message(self) -> dict[str, Any]:
        """As it goes through the control socket."""
        return {"fork": asdict(self)}


ChildMain = Callable[[ChildSpec, socket.socket], int]
"""Runs a child to its end; returns its exit code."""


def run(
    control: socket.socket,
    *,
    preload: Callable[[Callable[[str], None]], Mapping[str, Any]],
    before_fork: Callable[[], object],
    child_main: ChildMain,
) -> int:
    """Serve the supervisor at the other end of ``control`` until it hangs up. Returns the exit code.

    ``preload`` is given what tells the supervisor which step it is at.
    """
    die_with_parent(signal.SIGKILL)
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)  # the supervisor tells what to do, and the children inherit this
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    wake, awake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(awake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Imports make millions of objects that stay: looking through them again and again is a tenth of the time they take.
    gc.disable()
    _tell(control, {"ready": dict(preload(lambda step: _tell(control, {"step": step})))})
    # What is alive now is alive for ever: out of the collector's sight, so that it neither scans it (half a second a
    # time) nor dirties the pages that the children share.
    gc.collect()
    give_back()  # the imports' own work has left 28 MB in the allocator, shared by all children
    gc.freeze()
    gc.enable()
    while True:
        readable, _, _ = select.select([control.fileno(), wake], [], [])
        if wake in readable:
            _drain(wake)
            for pid, status in _ended():
                _tell(control, {"exited": pid, "status": status})
        if control.fileno() in readable:
            message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 1)
            if not message:
                return 0
            asked = json.loads(message)
            if "ping" in asked:
                _tell(control, {"pong": asked["ping"]})
                continue
            _tell(control, {"step": "reading the flows folder"})
            before_fork()
            _tell(control, {"step": ""})
            _fork(control, ChildSpec(**_spec(asked["fork"])), descriptors[0], (wake, awake), child_main)


def die_with_parent(number: int) -> None:
    """Be sent a signal when the process that forked this one has ended. Only Linux knows how; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)


def _fork(
    control: socket.socket, spec: ChildSpec, descriptor: int, pipes: tuple[int, int], child_main: ChildMain
) -> None:
    pid = os.fork()
    if pid:
        os.close(descriptor)
        _tell(control, {"forked": spec.name, "pid": pid})
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for pipe in pipes:
            os.close(pipe)
        code = child_main(spec, socket.socket(fileno=descriptor))
    except BaseException:  # noqa: BLE001  whatever it is, the child ends here and not in the zygote's loop
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a component may have closed it
                stream.flush()
        # Not sys.exit: what the parent has registered for its own exit (temporary folders) is not the child's to do,
        # and threads of blocking components are not waited for.
        os._exit(code)


def _spec(raw: dict[str, Any]) -> dict[str, Any]:
    return {**raw, "alone": tuple(raw["alone"]) if raw["alone"] else None}


def _ended() -> list[tuple[int, int]]:
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass


def _tell(control: socket.socket, message: Mapping[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")
