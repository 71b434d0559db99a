"""Connections to one server that are taken and given back, whatever their number.

A pool of httpcore looks through all of its connections before each request and after it, so that many requests at once
cost each other more than they cost alone; and where it has more connections than it may keep at rest, it closes each
that comes to rest. Here each connection has a pool of its own, which has nothing to look through.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from contextvars import Context
from typing import cast

import httpx

KEPT = 4.0
"""Seconds for which a connection rests unused. A server that closes it as a request is on its way breaks that request,
and servers of models close theirs after 5 (uvicorn and all that stand on it, Node)."""

LIMITS = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEPT)


class Connections(httpx.AsyncBaseTransport):
    """Used on one event loop. ``make`` makes a transport with these ``LIMITS``.

    As many connections are open as there are requests at once: a client of its own for each would not be limited by
    its neighbours. The one that was given back last is taken first; those that have rested too long are closed. What a
    request that failed or was cancelled had is closed too: httpcore may be left with a connection that it will never
    use again, for which whoever takes it would wait.
    """

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport]) -> None:
        self._make = make
        self._resting: deque[tuple[float, httpx.AsyncBaseTransport]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As any transport's; the connection is given back when the response is closed."""
        taken = self._resting.pop()[1] if self._resting else self._make()
        try:
            response = await taken.handle_async_request(request)
        except BaseException:
            self._close(taken)
            raise
        response.stream = _Taken(cast(httpx.AsyncByteStream, response.stream), self, taken)
        return response

    async def aclose(self) -> None:
        """Close the connections, those that are in use as soon as they are given back."""
        self._closed = True
        self._sweep()
        if self._closing:
            await asyncio.wait(self._closing)

    def give_back(self, taken: httpx.AsyncBaseTransport, *, whole: bool) -> None:
        """A response was closed; ``whole``: without an error, and not in the midst of being read."""
        if not whole or self._closed:
            self._close(taken)
            return
        self._resting.append((time.monotonic(), taken))
        if self._timer is None:
            self._arm(KEPT)

    def _arm(self, seconds: float) -> None:
        # Not in the caller's context: a run's would be kept until then.
        self._timer = asyncio.get_running_loop().call_later(seconds, self._sweep, context=Context())

    def _sweep(self) -> None:
        """Close what has rested too long, and look again when the next has."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.monotonic()
        while self._resting and (self._closed or self._resting[0][0] + KEPT <= now):
            self._close(self._resting.popleft()[1])
        if self._resting:
            self._arm(self._resting[0][0] + KEPT - now)

    def _close(self, transport: httpx.AsyncBaseTransport) -> None:
        """Close a connection, beside whoever had it: neither waits for that nor has its errors."""
        closing = asyncio.get_running_loop().create_task(_end(transport), name="connections:close", context=Context())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


async def _end(transport: httpx.AsyncBaseTransport) -> None:
    with suppress(Exception):  # it is not used any more
        await transport.aclose()


class _Taken(httpx.AsyncByteStream):
    """The body of a response, whose connection is given back when it is closed."""

    def __init__(self, inner: httpx.AsyncByteStream, owner: Connections, taken: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self._owner = owner
        self._taken: httpx.AsyncBaseTransport | None = taken
        self._read = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._read = False
        async for part in self._inner:
            yield part
        self._read = True

    async def aclose(self) -> None:
        taken, self._taken = self._taken, None
        if taken is None:
            return
        closed = False
        try:
            await self._inner.aclose()
            closed = True
        finally:
            # Closing alone tells nothing: cancelled as it was read, the body has been closed once, and half.
            self._owner.give_back(taken, whole=closed and self._read)
