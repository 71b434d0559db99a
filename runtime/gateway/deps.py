"""What every request may use, and how a handler asks for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

from runtime.archive.archive import Archive
from runtime.broker.client import Broker
from runtime.gateway.auth import Auth
from runtime.gateway.following import Following
from runtime.gateway.pressure import Pressure
from runtime.gateway.routes_known import KnownRoutes
from runtime.settings import Settings


@dataclass(frozen=True)
class Gateway:
    """The parts of one gateway process, made inside its event loop."""

    broker: Broker
    settings: Settings
    routes: KnownRoutes
    auth: Auth
    pressure: Pressure
    following: Following
    archive: Archive | None = None
    ending: list[str] = field(default_factory=list)
    """Not empty: it is ending, and why."""

    @classmethod
    def make(cls, broker: Broker, settings: Settings) -> Gateway:
        """A gateway on a broker. Raises SettingsError."""
        return cls(
            broker,
            settings,
            KnownRoutes(broker),
            Auth(broker.api_keys, settings.gateway),
            Pressure(broker.door, memory=settings.gateway.redis_memory),
            Following(broker.feeds),
            Archive.open(settings.archive),
        )


def gateway_of(connection: HTTPConnection) -> Gateway:
    """The gateway that a request came to."""
    return cast("Gateway", connection.app.state.gateway)


async def _of(connection: HTTPConnection) -> Gateway:
    # A coroutine, as all dependencies here: one that is none is run in a thread, which costs more than the request.
    return gateway_of(connection)


GatewayDep = Annotated[Gateway, Depends(_of)]
"""The gateway, as a handler's parameter."""
