"""What a run tells of its progress while it runs: kept here, and written to its feed only where somebody wants it."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import structlog

from runtime.broker.feeds import Feeds
from runtime.broker.feeds import Progress as Line
from runtime.broker.keys import RouteKeys
from shared_models.errors import HeadraceError
from shared_models.result import RunEventType

log = structlog.get_logger("headrace.worker")

PAUSE = 0.08
"""Seconds between two writes: what is told in between is written together."""

MOST = 2000
"""Lines that are kept; of more, the oldest are lost, and that is told."""

BATCH = 200
"""Lines of one write."""

LONGEST = 8192
"""Characters of one line of tokens."""

SHORT = 0.1
"""Seconds below which a run is not worth asking whether somebody follows it now who did not when it began."""

LAST_LINES = 1.0
"""Seconds that the last lines may take: a run's outcome does not wait longer for its progress."""


class Progress:
    """Takes the progress of one attempt. Never raises, and never holds the run up."""

    def __init__(self, feeds: Feeds, keys: RouteKeys, event_id: str, *, wanted: bool) -> None:
        self._feeds = feeds
        self._keys = keys
        self._event_id = event_id
        self._wanted = wanted
        self._began = time.monotonic()
        self._lines: deque[tuple[RunEventType, int, dict[str, Any]]] = deque()
        self._lost = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def age(self) -> float:
        """Seconds since the attempt began."""
        return time.monotonic() - self._began

    def emit(self, kind: RunEventType, data: Mapping[str, Any]) -> None:
        """Take one line. On the run's event loop."""
        if self._closed:
            return
        if kind is RunEventType.TOKEN and self._lines and (last := self._lines[-1])[0] is kind:
            text = last[2].get("text", "")
            if last[2].get("message_id") == data.get("message_id") and len(text) < LONGEST:
                last[2]["text"] = text + str(data.get("text", ""))
                return
        self._lines.append((kind, time.time_ns() // 1_000_000, dict(data)))
        if len(self._lines) > MOST:
            self._lines.popleft()
            self._lost += 1
        self._plan()

    def want(self) -> None:
        """Somebody follows the run: write what is kept, and what comes."""
        self._wanted = True
        self._plan()

    def drop(self) -> None:
        """Write nothing more: the run is another's now."""
        self._closed = True
        self._lines.clear()
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """Write the rest, if it is wanted; nothing is told after that."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is None and not self._wanted and (not self._lines or self.age < SHORT):
            return
        try:
            async with asyncio.timeout(LAST_LINES):
                if self._writing is not None:
                    await asyncio.wait({self._writing})
                if self._lines and not self._wanted and self.age >= SHORT:
                    self._wanted = await self._feeds.followed(self._keys, self._event_id)
                while self._wanted and (self._lines or self._lost):
                    await self._feeds.append(self._keys, self._event_id, self._take())
        except (TimeoutError, HeadraceError) as error:
            log.debug("progress.lost", event_id=self._event_id, error=str(error))
        if self._writing is not None and not self._writing.done():
            self._writing.cancel()

    def _plan(self) -> None:
        if not self._wanted or self._closed or self._timer is not None or self._writing is not None or not self._lines:
            return
        # Not in the run's context, which would live as long as the write.
        context = contextvars.Context()
        self._timer = asyncio.get_running_loop().call_later(PAUSE, self._start, context=context)

    def _start(self) -> None:
        self._timer = None
        self._writing = asyncio.create_task(self._write(), name=f"progress:{self._event_id}")

    async def _write(self) -> None:
        lines = self._take()
        try:
            await self._feeds.append(self._keys, self._event_id, lines)
        except HeadraceError:
            # Not repeated: they may be there. Whoever reads is told.
            self._lost += len(lines)
        finally:
            self._writing = None
        self._plan()

    def _take(self) -> list[Line]:
        lines = []
        if self._lost:
            lines.append(Line(RunEventType.GAP, time.time_ns() // 1_000_000, {"lost": self._lost}))
            self._lost = 0
        while self._lines and len(lines) < BATCH:
            lines.append(Line(*self._lines.popleft()))
        return lines
