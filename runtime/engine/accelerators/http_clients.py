"""Keep the connections to providers of models open from run to run.

Why: the engine makes two HTTP clients per model and run; each begins with a connection and a TLS handshake of its own,
50 to 150 ms to a real provider, and leaves them for the garbage collector to close. A streamed answer is left before
its very end, and with it its connection.
Safe because: what is shared is the transport, the connections, and nothing else. Each run gets clients of its own, with
their headers, cookies and hooks, whose closing leaves the connections open. Transports are shared by code on the
worker's own loop only, per URL, and where no proxy is set, which a run might do for itself; they are made anew after a
minute, which has the engine check and pin the address again, and closed when the last run that has one has ended. Of a
streamed answer that has said that it is done, what is left is read, if it comes at once.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any
from urllib.request import getproxies

import httpx

from runtime.engine.accelerators.base import Accelerator, Patches, Target
from runtime.engine.accelerators.connections import KEPT, LIMITS, Connections
from runtime.engine.state import CURRENT

FRESH = 60.0
"""Seconds for which transports are handed out."""

DONE = b"data: [DONE]"
TAIL = 64
"""Bytes of what was read last in which that stands, with the blank lines behind it."""

REST = 0.1
"""Seconds in which the end of a streamed answer comes, after its last event, or its connection is closed."""

MAX_URLS = 64
SYNC_LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=1000, keepalive_expiry=KEPT)
"""For blocking code of runs, in threads. A client of its own per run would not have been limited by its neighbours."""

Pair = dict[str, Any]


class _Sync(httpx.BaseTransport):
    """A shared transport in the hands of one client."""

    def __init__(self, shared: httpx.BaseTransport) -> None:
        self._shared = shared

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._shared.handle_request(request)


class _Async(httpx.AsyncBaseTransport):
    """A shared transport in the hands of one client."""

    def __init__(self, shared: httpx.AsyncBaseTransport) -> None:
        self._shared = shared

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._shared.handle_async_request(request)
        if isinstance(response.stream, httpx.AsyncByteStream):
            events = response.headers.get("content-type", "").startswith("text/event-stream")
            response.stream = (_ToItsEnd if events else _Stream)(response.stream, response)
        return response


class _Stream(httpx.AsyncByteStream):
    """The body of a response, which lets go of it when it is closed.

    The client puts a stream in its place that has the response, so that the two would keep each other.
    """

    def __init__(self, inner: httpx.AsyncByteStream, response: httpx.Response | None = None) -> None:
        self._inner = inner
        self._response = None if response is None else weakref.ref(response)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            yield part

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            response = None if self._response is None else self._response()
            # The client's own wrapper, and not one that a hook has put around it.
            if response is not None and getattr(response.stream, "_stream", None) is self:
                response.stream = self


class _ToItsEnd(_Stream):
    """A stream of server-sent events that is read to its end when it is left after its last event.

    The client leaves it at that event. The end of the body comes right behind it, and unless it is read the connection
    cannot be used again.
    """

    def __init__(self, inner: httpx.AsyncByteStream, response: httpx.Response | None = None) -> None:
        super().__init__(inner, response)
        self._parts = aiter(inner)
        self._last = b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._parts:
            self._last = (self._last + part[-TAIL:])[-TAIL:]
            yield part
        self._last = b""

    async def aclose(self) -> None:
        try:
            if self._last.rstrip().endswith(DONE):
                with suppress(TimeoutError, httpx.HTTPError, RuntimeError):  # the last: somebody else reads it still
                    async with asyncio.timeout(REST):
                        async for _ in self._parts:
                            pass
        finally:
            await super().aclose()


class Shared:
    """The two transports for one URL, and who has them."""

    def __init__(self, sync: httpx.BaseTransport, async_: httpx.AsyncBaseTransport) -> None:
        self._sync = sync
        self._async = async_
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self.until = time.monotonic() + FRESH

    @property
    def used(self) -> bool:
        """Whether a client still has one of them."""
        return bool(self._users)

    def hand_out(self) -> tuple[httpx.BaseTransport, httpx.AsyncBaseTransport]:
        """Both, for the clients of one model."""
        pair = _Sync(self._sync), _Async(self._async)
        self._users.update(pair)
        return pair

    async def close(self) -> None:
        """Close the connections."""
        self._sync.close()
        await self._async.aclose()


class Transports:
    """Shared transports of one event loop, by URL. Used on that loop only."""

    def __init__(self, make: Callable[[str], Shared | None]) -> None:
        self._make = make
        self._kept: OrderedDict[str, Shared] = OrderedDict()
        self._retired: list[Shared] = []
        self._closing: set[asyncio.Task[None]] = set()

    def get(self, url: str) -> Shared | None:
        """Those of a URL; None where the engine pins nothing. Raises what the engine's check of the address raises."""
        kept = self._kept.get(url)
        if kept is not None and time.monotonic() < kept.until:
            self._kept.move_to_end(url)
            return kept
        if kept is not None:
            self._retired.append(self._kept.pop(url))
        made = self._make(url)
        if made is not None:
            self._kept[url] = made
            if len(self._kept) > MAX_URLS:
                self._retired.append(self._kept.popitem(last=False)[1])
        self._sweep()
        return made

    async def close(self) -> None:
        """Close all connections at once."""
        for shared in (*self._kept.values(), *self._retired):
            await shared.close()
        self._kept.clear()
        self._retired.clear()

    def _sweep(self) -> None:
        done = [shared for shared in self._retired if not shared.used]
        self._retired = [shared for shared in self._retired if shared not in done]
        for shared in done:
            closing = asyncio.get_running_loop().create_task(shared.close(), name="http-clients:close")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def _shared(patches: Patches, url: str) -> Shared | None:
    """Transports as the engine makes them, with room for many runs at once."""
    pinned = patches.module("lfx.utils.ssrf_transport")
    sync, async_ = patches.module(_HELPERS).ssrf_protected_httpx_client_kwargs_for_url(url)
    if not sync or not async_:
        return None
    if "transport" not in sync or "transport" not in async_:  # an address that needs no check: a server of one's own
        plain = httpx.HTTPTransport(limits=SYNC_LIMITS)
        return Shared(plain, Connections(partial(httpx.AsyncHTTPTransport, verify=_context(plain), limits=LIMITS)))
    ips = async_["transport"].pinned_ips
    blocking = pinned.SSRFProtectedSyncTransport(pinned_ips=sync["transport"].pinned_ips, limits=SYNC_LIMITS)
    make = partial(pinned.SSRFProtectedTransport, pinned_ips=ips, verify=_context(blocking), limits=LIMITS)
    return Shared(blocking, Connections(make))


def _context(transport: Any) -> Any:
    """A transport's TLS context, for others: to make one takes 21 ms, and each connection has a transport."""
    return getattr(transport._pool, "_ssl_context", True)


def _install(patches: Patches) -> None:
    loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Transports] = weakref.WeakKeyDictionary()

    async def rest() -> None:
        transports = loops.pop(asyncio.get_running_loop(), None)
        if transports is not None:
            await transports.close()

    patches.at_rest(rest)
    helpers = patches.module(_HELPERS)

    def make(original: Callable[[str], Pair]) -> Callable[[str], Pair]:
        @wraps(original)
        def ssrf_protected_openai_clients_for_url(url: str) -> Pair:
            state = CURRENT.get()
            if patches.off or state is None or asyncio._get_running_loop() is not state.loop or getproxies():
                return original(url)
            if state.loop not in loops:
                loops[state.loop] = Transports(partial(_shared, patches))
            shared = loops[state.loop].get(url)
            if shared is None:
                return original(url)
            sync, async_ = shared.hand_out()
            clients: Pair = helpers._openai_clients_from_kwargs(
                {"follow_redirects": False, "transport": sync}, {"follow_redirects": False, "transport": async_}
            )
            return clients

        return ssrf_protected_openai_clients_for_url

    patches.replace(patches.module(_INSTANTIATION), "ssrf_protected_openai_clients_for_url", make)


_HELPERS = "lfx.utils.ssrf_httpx"
_INSTANTIATION = "lfx.base.models.unified_models.instantiation"

HTTP_CLIENTS = Accelerator(
    name="http_clients",
    targets=(
        Target(_HELPERS, "ssrf_protected_openai_clients_for_url", frozenset({"32eae89efe736d7e"})),
        Target(_HELPERS, "_openai_clients_from_kwargs", frozenset({"2bee8e74db01130e"})),
        Target(_HELPERS, "_httpx_client_kwargs_for_validated_url", frozenset({"14e0d1a656f5490c"})),
        Target(_INSTANTIATION, "_protect_model_connection", frozenset({"0422ebace9352132"})),
    ),
    install=_install,
)
