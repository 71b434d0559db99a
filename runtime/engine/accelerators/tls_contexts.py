"""Share TLS contexts between HTTP clients.

Why: a client reads the certificate authorities' file when it is made, 21 ms each; a model makes two clients per run.
Safe because: only contexts of the default verification are shared, among clients that would read the same file (its
path and time of change, and the environment that names it) and speak the same protocols (httpcore sets those on the
context). Nothing in httpx writes to a context after that.
"""

from __future__ import annotations

import functools
import os
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import certifi

from runtime.engine.accelerators.base import Accelerator, Patches, Target

MAX_CONTEXTS = 16
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class Contexts:
    """TLS contexts by what they depend on. Safe for threads."""

    def __init__(self, make: Callable[..., ssl.SSLContext]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._contexts: OrderedDict[Hashable, ssl.SSLContext] = OrderedDict()

    def get(self, *, trust_env: bool, http2: bool) -> ssl.SSLContext:
        """A context that verifies servers as httpx does by default."""
        named = tuple(os.environ.get(name) for name in _VARIABLES) if trust_env else (None, None)
        key = (named, os.environ.get("SSLKEYLOGFILE"), _changed(next(filter(None, named), certifi.where())), http2)
        with self._lock:
            context = self._contexts.get(key)
            if context is None:
                context = self._contexts[key] = self._make(verify=True, trust_env=trust_env)
                while len(self._contexts) > MAX_CONTEXTS:
                    self._contexts.popitem(last=False)
            self._contexts.move_to_end(key)
            return context


def _changed(path: str) -> int | None:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return None


def _install(patches: Patches) -> None:
    contexts = Contexts(patches.module("httpx._config").create_ssl_context)
    plain, pinned = patches.module("httpx._transports.default"), patches.module("lfx.utils.ssrf_transport")
    for owner, positional in (
        (plain.HTTPTransport, 0),
        (plain.AsyncHTTPTransport, 0),
        (pinned.SSRFProtectedTransport, 1),
        (pinned.SSRFProtectedSyncTransport, 1),
    ):
        patches.replace(owner, "__init__", functools.partial(_with_context, patches, contexts, positional))


def _with_context(
    patches: Patches, contexts: Contexts, positional: int, original: Callable[..., None]
) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **keywords: Any) -> None:  # noqa: N807  it takes its place
        default = keywords.get("verify", True) is True and not keywords.get("cert") and not keywords.get("proxy")
        if default and len(args) <= positional and not patches.off:
            keywords["verify"] = contexts.get(
                trust_env=bool(keywords.get("trust_env", True)), http2=bool(keywords.get("http2", False))
            )
        original(self, *args, **keywords)

    return __init__


TLS_CONTEXTS = Accelerator(
    name="tls_contexts",
    targets=(
        Target("httpx._config", "create_ssl_context", frozenset({"9be7e17a2eea5af5"})),
        Target("httpx._transports.default", "HTTPTransport.__init__", frozenset({"9276d2beedec5284"})),
        Target("httpx._transports.default", "AsyncHTTPTransport.__init__", frozenset({"8234e1f3db32b247"})),
        Target("lfx.utils.ssrf_transport", "SSRFProtectedTransport.__init__", frozenset({"005ed4b6425e2450"})),
        Target("lfx.utils.ssrf_transport", "SSRFProtectedSyncTransport.__init__", frozenset({"7df9057644f60c53"})),
    ),
    install=_install,
)
