"""Who asks, and what they may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

from runtime.broker.client import Broker
from runtime.gateway.problems import Problem
from runtime.settings import GatewaySettings

Scope = Literal["send", "read", "admin"]


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


ANYBODY = Principal("anonymous", None, frozenset({"send", "read", "admin"}))
"""Who asks where no key is needed."""


class Auth:
    """Tells who a request is from."""

    def __init__(self, broker: Broker, settings: GatewaySettings) -> None:
        self._broker = broker
        self._settings = settings

    async def principal(self, connection: HTTPConnection) -> Principal:
        """Who asks. Raises Problem 401."""
        return ANYBODY


async def _principal(connection: HTTPConnection) -> Principal:
    auth = cast("Auth", connection.app.state.gateway.auth)
    return await auth.principal(connection)


def require(scope: Scope) -> Callable[..., Principal]:
    """A dependency: the principal, if it has the scope. Raises Problem 401 or 403."""

    def granted(principal: Annotated[Principal, Depends(_principal)]) -> Principal:
        if not principal.may(scope):
            raise Problem(403, "scope_missing", f"this key has not the scope {scope!r}")
        return principal

    return granted


Sender = Annotated[Principal, Depends(require("send"))]
Reader = Annotated[Principal, Depends(require("read"))]
Admin = Annotated[Principal, Depends(require("admin"))]
