"""``headrace flows check`` and ``flows list``: what each flow needs, said offline, without running one.

Flows are loaded in a process of their own, one for many flows, since the engine's import takes 5 to 17 s. A flow that
ends that process, or holds it too long, is reported as invalid, and a new process goes on with the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Self

from runtime.engine.base import FlowSource
from runtime.engine.check_child import source_to_json
from runtime.engine.inspection import invalid_report
from runtime.engine.report import FlowReport
from runtime.errors import EngineError

START_TIMEOUT = 180.0
FLOW_TIMEOUT = 60.0
"""Seconds for the engine's import, and for loading one flow (the first one pays for imports that others share)."""

_HIDDEN = ("HEADRACE_", "REDIS_URL")


def check_flow(
    source: FlowSource, siblings: Mapping[str, FlowSource] | None = None, environ: Mapping[str, str] = os.environ
) -> FlowReport:
    """Check one flow. ``siblings`` are the flows beside it, by route: those that Run Flow components may run."""
    return next(check_flows([source], siblings, environ))


def check_flows(
    sources: Iterable[FlowSource],
    siblings: Mapping[str, FlowSource] | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    timeout: float = FLOW_TIMEOUT,
) -> Iterator[FlowReport]:
    """A report for each flow, in their order. ``siblings`` are the sources themselves unless given.

    ``timeout`` is in seconds and for one flow. Raises EngineError if the engine itself cannot be started.
    """
    flows = list(sources)
    beside = dict(siblings) if siblings is not None else {flow.route: flow for flow in flows}
    with contextlib.ExitStack() as stack:
        child: _Child | None = None
        for flow in flows:
            if child is None:
                child = stack.enter_context(_Child(environ, beside))
            report = child.check(flow, timeout=timeout)
            if not child.alive:
                child = None
            yield report


class _Child:
    """The checker's process. It dies with the flow that kills it; its owner then makes another."""

    def __init__(self, environ: Mapping[str, str], siblings: Mapping[str, FlowSource]) -> None:
        self._names = sorted(name for name, value in environ.items() if value)
        visible = {name: value for name, value in environ.items() if not name.upper().startswith(_HIDDEN)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "runtime.engine.check_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=visible,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101  both are pipes
        self._requests: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout
        self._rest = b""
        self.alive = True
        self._siblings = list(siblings.values())
        self._started = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def check(self, source: FlowSource, *, timeout: float) -> FlowReport:
        """The flow's report: from the process, or about its end."""
        if not self._started:
            self._start()
        began = time.monotonic()
        try:
            answer = self._ask({"flow": source_to_json(source), "environ": self._names}, timeout=timeout)
        except TimeoutError:
            self._end()
            return invalid_report(source, f"loading it took longer than {timeout:g} s", seconds=timeout)
        except EOFError:
            self._end()
            how = _ending(self._process.returncode)
            return invalid_report(source, f"loading it ended the process: {how}", seconds=time.monotonic() - began)
        return FlowReport.model_validate(answer)

    def _start(self) -> None:
        try:
            self._receive(timeout=START_TIMEOUT)
        except (TimeoutError, EOFError) as error:
            self._end()
            how = _ending(self._process.returncode)
            raise EngineError(f"the engine did not start: {how}; try 'headrace doctor'") from error
        self._send({"siblings": [source_to_json(sibling) for sibling in self._siblings]})
        self._started = True

    def _ask(self, request: Mapping[str, Any], *, timeout: float) -> Any:
        self._send(request)
        return self._receive(timeout=timeout)

    def _send(self, request: Mapping[str, Any]) -> None:
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        except BrokenPipeError as error:
            raise EOFError from error

    def _receive(self, *, timeout: float) -> Any:
        """The next line. Raises TimeoutError, or EOFError where the process has ended."""
        until = time.monotonic() + timeout
        descriptor = self._answers.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise TimeoutError
                piece = os.read(descriptor, 1 << 16)
                if not piece:
                    raise EOFError
                self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _end(self) -> None:
        """Kill what is left of the process and of those it started, and wait for it."""
        if not self.alive:
            return
        self.alive = False
        with contextlib.suppress(OSError):
            self._requests.close()
        self._await_end()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._answers.close()

    def _await_end(self) -> None:
        """Let a process that is ending already end by itself: its exit status says why."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)


def _ending(code: int | None) -> str:
    if code is None:
        return "it was killed"
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"
