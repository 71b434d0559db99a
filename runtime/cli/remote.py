"""Commands through a gateway in place of Redis."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from runtime.client import AsyncClient
    from shared_models.envelope import EventEnvelope
    from shared_models.result import RunRecord

GatewayUrl = Annotated[
    str | None,
    typer.Option(
        "--gateway",
        metavar="URL",
        help="Through this gateway, not Redis. Else HEADRACE_GATEWAY_URL; HEADRACE_API_KEY is the key.",
        show_default=False,
    ),
]


def gateway_of(option: str | None, redis_url: str | None) -> str | None:
    """The gateway to ask; None: Redis. Who names a Redis means that."""
    if option is not None and redis_url is not None:
        raise typer.BadParameter("--gateway and --redis-url exclude each other")
    return option or (os.environ.get("HEADRACE_GATEWAY_URL") if redis_url is None else None) or None


@asynccontextmanager
async def client(url: str) -> AsyncIterator[AsyncClient]:
    """A client for the length of a command; it is not patient: a person waits."""
    from runtime.client import AsyncClient
    from runtime.errors import SettingsError

    if not url.startswith(("http://", "https://")):
        raise SettingsError(f"a gateway's URL begins with http:// or https://, not {url[:20]!r}")
    async with AsyncClient(url, api_key=os.environ.get("HEADRACE_API_KEY") or None, patience=5.0) as made:
        yield made


async def show(url: str, event_id: str, route: str | None) -> RunRecord:
    """A run."""
    async with client(url) as ask:
        return await ask.get(event_id, route=route)


async def listed(url: str, route: str | None, status: str | None, count: int) -> list[RunRecord]:
    """Runs, newest first."""
    async with client(url) as ask:
        return [record async for record in ask.list(count=count, route=route, status=status)]


async def cancel(url: str, event_id: str, route: str | None) -> str:
    """Cancel a run: ``cancelled`` or ``asked``."""
    async with client(url) as ask:
        return await ask.cancel(event_id, route=route)


async def send(
    url: str, route: str, events: Iterator[EventEnvelope], *, seconds: float | None
) -> AsyncIterator[tuple[str, str, RunRecord | None]]:
    """Send events one by one, then wait for them where ``seconds`` says so: event id, route, and the ended run."""
    async with client(url) as ask:
        sent = []
        for event in events:
            key = event.idempotency_key
            told = await ask.send(route, event.payload, key=key, session_id=event.session_id, tenant_id=event.tenant_id)
            if seconds is None:
                yield told.event_id, told.route, None
            sent.append(told)
        for told in sent if seconds is not None else ():
            yield told.event_id, told.route, await ask.wait(told.event_id, seconds=seconds, route=told.route)
