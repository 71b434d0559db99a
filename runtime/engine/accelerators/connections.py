"""Connections to one server that are taken and given back, whatever their number.

A pool of httpcore looks through all of its connections before each request and after it, so that many requests at once
cost each other more than they cost alone; and where it has more connections than it may keep at rest, it closes each
that comes to rest. Here each connection has a pool of its own, which has nothing to look through.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import cast

import httpx

KEPT = 4.0
"""Seconds for which a connection rests unused. A server that closes it as a request is on its way breaks that request,
and servers of models close theirs after 5 (uvicorn and all that stand on it, Node)."""

LIMITS = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEPT)


class Connections(httpx.AsyncBaseTransport):
    """Used on one event loop. ``make`` makes a transport with these ``LIMITS``.

    As many connections are open as there are requests at once: a client of its own for each would not be limited by
    its neighbours. The one that was given back last is taken first; those that have rested too long are closed.
    """

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport]) -> None:
        self._make = make
        self._resting: deque[tuple[float, httpx.AsyncBaseTransport]] = deque()
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As any transport's; the connection is given back when the response is closed."""
        taken = self._resting.pop()[1] if self._resting else self._make()
        try:
            response = await taken.handle_async_request(request)
        except BaseException:  # the pool has closed what the request had
            await self._give_back(taken)
            raise
        response.stream = _Taken(cast(httpx.AsyncByteStream, response.stream), partial(self._give_back, taken))
        return response

    async def aclose(self) -> None:
        """Close the connections, those that are in use as soon as they are given back."""
        self._closed = True
        while self._resting:
            await self._resting.popleft()[1].aclose()

    async def _give_back(self, taken: httpx.AsyncBaseTransport) -> None:
        now = time.monotonic()
        self._resting.append((now, taken))
        while self._resting and (self._closed or self._resting[0][0] < now - KEPT):
            await self._resting.popleft()[1].aclose()


class _Taken(httpx.AsyncByteStream):
    """The body of a response, whose connection is given back when it is closed."""

    def __init__(self, inner: httpx.AsyncByteStream, give_back: Callable[[], Awaitable[None]]) -> None:
        self._inner = inner
        self._give_back: Callable[[], Awaitable[None]] | None = give_back

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._inner)

    async def aclose(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is None:
            return
        try:
            await self._inner.aclose()
        finally:
            await give_back()
