"""Who asks, and what they may do."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, cast
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.requests import HTTPConnection

from runtime.broker.api_keys import PREFIX, ApiKey, ApiKeys, digest
from runtime.gateway.problems import Problem
from runtime.settings import GatewaySettings

Scope = Literal["send", "read", "admin"]

SCOPES: tuple[Scope, ...] = ("send", "read", "admin")

FRESH = 3.0
"""Seconds that a key is remembered: so long a revoked one may still be good."""

REMEMBERED = 10_000
"""Keys that are remembered at most."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. ``tenant`` None: all tenants. ``admin`` among the scopes includes the others."""

    name: str
    tenant: str | None
    scopes: frozenset[str]

    def may(self, scope: Scope) -> bool:
        """Whether the scope is granted."""
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, tenant_id: str | None) -> bool:
        """Whether what belongs to a tenant may be seen."""
        return self.tenant is None or self.tenant == tenant_id


ANYBODY = Principal("anybody", None, frozenset(SCOPES))
"""Who asks where no key is needed."""


def needs_keys(settings: GatewaySettings) -> bool:
    """Whether requests need a key: always, but where it is switched off or only this machine can ask."""
    return settings.auth == "required" or (settings.auth == "auto" and not is_loopback(settings.host))


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Auth:
    """Tells who a request is from."""

    def __init__(self, keys: ApiKeys, settings: GatewaySettings) -> None:
        self._keys = keys
        self._settings = settings
        self._needed = needs_keys(settings)
        self._known: dict[str, tuple[float, ApiKey | None]] = {}

    async def principal(self, connection: HTTPConnection) -> Principal:
        """Who asks. Raises Problem 401 or 403, and BrokerUnavailable."""
        if not self._needed:
            self._check_browser(connection)
            return ANYBODY
        key_id, secret = _token(connection)
        key = await self._key(key_id)
        # Compared also where there is no such key: the time taken tells nothing.
        good = hmac.compare_digest(digest(secret), key.digest if key else "")
        if key is None or not good or (key.expires_at is not None and key.expires_at <= time.time_ns() // 1_000_000):
            raise _unauthorized("this API key is not known, was revoked or has expired")
        return Principal(key.name or key.id, key.tenant, frozenset(key.scopes))

    async def granted(self, connection: HTTPConnection, scope: Scope) -> Principal:
        """Who asks, if they may. Raises Problem 401 or 403, and BrokerUnavailable."""
        principal = await self.principal(connection)
        if not principal.may(scope):
            raise Problem(403, "scope_missing", f"this key has not the scope {scope!r}")
        return principal

    async def _key(self, key_id: str) -> ApiKey | None:
        read, key = self._known.get(key_id, (float("-inf"), None))
        if time.monotonic() - read > FRESH:
            key = await self._keys.get(key_id)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key_id] = (time.monotonic(), key)
        return key

    def _check_browser(self, connection: HTTPConnection) -> None:
        """Without keys, a page that the user has open elsewhere must not be able to ask in their place.

        A browser tells the page's origin with every request of it that can change anything, and sends the name that it
        looked up: a foreign name for a loopback address is a page that had its own name point here.
        """
        host = connection.headers.get("host", "")
        name = _part(f"//{host}", "hostname")
        if is_loopback(self._settings.host) and not is_loopback(name):
            raise Problem(
                403, "host_forbidden", f"without API keys this gateway answers to loopback only, not {name!r}"
            )
        origin = connection.headers.get("origin")
        allowed = self._settings.origins
        if origin is None or origin in allowed or "*" in allowed or _part(origin, "netloc") == host:
            return
        raise Problem(403, "origin_forbidden", "this origin may not call; HEADRACE_GATEWAY__CORS lists those that may")


@lru_cache(maxsize=128)
def _part(url: str, name: Literal["hostname", "netloc"]) -> str:
    """A part of a URL; empty where it has none, or is none."""
    try:
        return getattr(urlsplit(url), name) or ""
    except ValueError:
        return ""


def _token(connection: HTTPConnection) -> tuple[str, str]:
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        token = connection.headers.get("x-api-key", "")
    parts = token.strip().split("_", 2)
    if not token:
        raise _unauthorized("send an API key: Authorization: Bearer hr_… (headrace keys create makes one)")
    if len(parts) != 3 or parts[0] != PREFIX or len(parts[1]) > 64:
        raise _unauthorized("this is not an API key of this gateway")
    return parts[1], parts[2]


def _unauthorized(detail: str) -> Problem:
    return Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="headrace"'})


def require(scope: Scope) -> Callable[..., Awaitable[Principal]]:
    """A dependency: the principal, if it has the scope. Raises Problem 401 or 403."""

    async def granted(connection: HTTPConnection) -> Principal:
        auth = cast("Auth", connection.app.state.gateway.auth)
        return await auth.granted(connection, scope)

    return granted


Sender = Annotated[Principal, Depends(require("send"))]
Reader = Annotated[Principal, Depends(require("read"))]
