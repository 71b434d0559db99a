"""Use HTTP clients of models again, so that connections to providers stay open.

Why: the engine makes two clients per model and run; each begins with a connection and a TLS handshake of its own, 50 to
150 ms to a real provider, and leaves them for the garbage collector to close.
Safe because: what tells one caller from another (the key, the headers) goes with each request, not with the client;
cookies, which would stay with it, are refused. Clients are shared by code on the worker's own loop only, per URL, and
made anew after a minute, which checks the address and pins its host again as the engine would.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import httpx

from runtime.engine.accelerators.base import Accelerator, Patches, Target
from runtime.engine.state import CURRENT

FRESH = 60.0
"""Seconds for which a client is handed out."""

DRAIN = 900.0
"""Seconds after which one that is not handed out any more is closed: its last run has ended by then, or timed out."""

MAX_URLS = 64
LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=5.0)
"""A client of its own per run would not have been limited by its neighbours."""

Pair = dict[str, Any]


class Clients:
    """Client pairs of one event loop, by URL. Used on that loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._kept: OrderedDict[str, tuple[Pair, float]] = OrderedDict()
        self._retired: deque[Pair] = deque()
        self._closing: set[asyncio.Task[None]] = set()

    def get(self, url: str, make: Callable[[str], Pair]) -> Pair:
        """A pair for a URL; empty where the engine would give none."""
        kept = self._kept.get(url)
        if kept is not None:
            pair, until = kept
            if time.monotonic() < until and not any(client.is_closed for client in pair.values()):
                self._kept.move_to_end(url)
                return dict(pair)
            self._retire(url)
        pair = make(url)
        if pair:
            self._kept[url] = (pair, time.monotonic() + FRESH)
            if len(self._kept) > MAX_URLS:
                self._retire(next(iter(self._kept)))
        return dict(pair)

    async def close(self) -> None:
        """Close all connections at once."""
        for pair in (*(pair for pair, _ in self._kept.values()), *self._retired):
            await _shut(pair)
        self._kept.clear()
        self._retired.clear()

    def _retire(self, url: str) -> None:
        pair, _ = self._kept.pop(url)
        if (loop := self._loop()) is not None:
            self._retired.append(pair)
            # Not in the context of the run that came by: it would be kept until then.
            loop.call_later(DRAIN, self._shut_oldest, context=contextvars.Context())

    def _shut_oldest(self) -> None:
        if self._retired and (loop := self._loop()) is not None:
            closing = loop.create_task(_shut(self._retired.popleft()), name="http-clients:close")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


async def _shut(pair: Pair) -> None:
    pair["http_client"].close()
    await pair["http_async_client"].aclose()


def _make(patches: Patches, url: str) -> Pair:
    """As the engine makes them, with room for many runs at once."""
    httpx_helpers, transports = patches.module(_HELPERS), patches.module("lfx.utils.ssrf_transport")
    sync, async_ = httpx_helpers.ssrf_protected_httpx_client_kwargs_for_url(url)
    if not sync and not async_:
        return {}
    for keywords, kind in (
        (sync, transports.SSRFProtectedSyncTransport),
        (async_, transports.SSRFProtectedTransport),
    ):
        if "transport" in keywords:
            keywords["transport"] = kind(pinned_ips=keywords["transport"].pinned_ips, limits=LIMITS)
        else:
            keywords["limits"] = LIMITS
    pair: Pair = httpx_helpers._openai_clients_from_kwargs(sync, async_)
    for client in pair.values():
        client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
    return pair


def _install(patches: Patches) -> None:
    loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Clients] = weakref.WeakKeyDictionary()

    async def close() -> None:
        clients = loops.pop(asyncio.get_running_loop(), None)
        if clients is not None:
            await clients.close()

    patches.at_rest(close)

    def make(original: Callable[[str], Pair]) -> Callable[[str], Pair]:
        @functools.wraps(original)
        def ssrf_protected_openai_clients_for_url(url: str) -> Pair:
            state = CURRENT.get()
            if patches.off or state is None or asyncio._get_running_loop() is not state.loop:
                return original(url)
            clients = loops.get(state.loop)
            if clients is None:
                clients = loops[state.loop] = Clients(state.loop)
            return clients.get(url, functools.partial(_make, patches))

        return ssrf_protected_openai_clients_for_url

    patches.replace(patches.module(_INSTANTIATION), "ssrf_protected_openai_clients_for_url", make)


_HELPERS = "lfx.utils.ssrf_httpx"
_INSTANTIATION = "lfx.base.models.unified_models.instantiation"

HTTP_CLIENTS = Accelerator(
    name="http_clients",
    targets=(
        Target(_HELPERS, "ssrf_protected_openai_clients_for_url", frozenset({"32eae89efe736d7e"})),
        Target(_HELPERS, "_openai_clients_from_kwargs", frozenset({"2bee8e74db01130e"})),
        Target(_INSTANTIATION, "_protect_model_connection", frozenset({"0422ebace9352132"})),
    ),
    install=_install,
)
