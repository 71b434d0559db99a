"""Liveness and readiness: whether a worker that looks alive does anything.

Liveness fails where a restart helps: children that are gone and do not come back, a child that has not looked at its
streams for 30 s although Redis answers, a backlog that waits while nobody picks anything up. It does not fail because
Redis is away, a route is blocked or a run is long. Readiness says whether this worker reads now.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

log = structlog.get_logger("headrace.worker")

SILENT = 30.0
"""Seconds without a look at the streams, or without a pick while a backlog waits, that are too many."""

REDIS_FRESH = 15.0
"""Seconds within which Redis must have answered the supervisor for silence to be a child's own fault."""


@dataclass(frozen=True, slots=True)
class ChildView:
    """One child as a probe sees it. Ages in seconds."""

    name: str
    reading: bool
    beat: float
    poll: float
    pick: float
    used: int


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as a probe sees it. Ages in seconds; ``backlog`` is for how long unblocked routes had waiting events."""

    started: float
    loaded: bool
    draining: bool
    processes: int
    concurrency: int
    hang_timeout: float
    redis_age: float
    short_of_children: float
    backlog: float
    children: tuple[ChildView, ...]


def not_live(view: WorkerView) -> list[str]:
    """Why the worker should be restarted; empty: it should not."""
    if view.draining or not view.loaded:
        return []
    reasons = []
    reading = [child for child in view.children if child.reading]
    redis = view.redis_age < REDIS_FRESH
    if redis and view.short_of_children > SILENT:
        reasons.append(f"{len(reading)} of {view.processes} processes read, for {view.short_of_children:.0f} s")
    for child in reading:
        if child.beat > view.hang_timeout + SILENT:
            reasons.append(f"the event loop of {child.name} has stood still for {child.beat:.0f} s")
        elif redis and child.beat < SILENT < child.poll:
            reasons.append(f"{child.name} has not looked at its streams for {child.poll:.0f} s, though Redis answers")
    # A route's own limit may hold events back while something of it runs: only a worker that does nothing is at fault.
    idle = all(child.used == 0 and child.beat < SILENT < child.pick for child in reading)
    if redis and reading and idle and view.backlog > SILENT:
        reasons.append(f"events have waited for {view.backlog:.0f} s and nothing was picked up")
    return reasons


def not_ready(view: WorkerView) -> list[str]:
    """Why the worker does not read now; empty: it does."""
    if view.draining:
        return ["draining"]
    if not view.loaded:
        return ["loading the flows"]
    if not any(child.reading for child in view.children):
        return ["no process reads yet"]
    if view.redis_age >= REDIS_FRESH:
        return [f"Redis has not answered for {view.redis_age:.0f} s"]
    return []


class ProbeServer:
    """Answers ``/livez`` and ``/readyz`` with 200 or 503 and the reasons as JSON."""

    def __init__(self, host: str, port: int, look: Callable[[], WorkerView]) -> None:
        self._host = host
        self._port = port
        self._look = look

    async def run(self) -> None:
        """Serve until cancelled."""
        import uvicorn  # noqa: PLC0415  comes with the engine; a worker without it has no probes

        config = uvicorn.Config(
            self._answer,
            host=self._host,
            port=self._port,
            log_config=None,
            access_log=False,
            lifespan="off",
            interface="asgi3",
        )
        server = uvicorn.Server(config)
        # The supervisor has its own way with signals.
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]  # a class stands in
        try:
            await server.serve()
        except SystemExit as end:
            raise OSError(f"the probe port {self._port} cannot be used") from end
        finally:
            server.should_exit = True

    async def _answer(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        ask = {"/livez": not_live, "/healthz": not_live, "/readyz": not_ready}.get(str(scope.get("path")))
        reasons = ask(self._look()) if ask else ["there are /livez and /readyz"]
        status = 404 if ask is None else 503 if reasons else 200
        body = json.dumps({"ok": status == 200, "reasons": reasons}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
