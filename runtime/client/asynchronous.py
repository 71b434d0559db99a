"""The client for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

import httpx

from runtime.client import protocol
from runtime.client.protocol import Accepted, Ask, Event
from runtime.errors import GatewayUnavailable
from shared_models.result import RunRecord


class AsyncClient:
    """Talks to a gateway. Raises GatewayError for what it refuses, GatewayUnavailable where it cannot be had.

    ``timeout``: seconds of one request. ``patience``: seconds for which a request is tried again while the gateway is
    away or asks to come later.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        patience: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._patience = patience
        self._timeout = timeout
        self._http = httpx.AsyncClient(
            base_url=url, headers=protocol.headers_of(api_key), timeout=timeout, transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(
        self,
        route: str,
        payload: Mapping[str, Any] | str,
        *,
        session_id: str | None = None,
        tenant_id: str | None = None,
        key: str | None = None,
        stream: bool = False,
        callback: str | None = None,
    ) -> Accepted:
        """Send an event; a text is the flow's input. With a ``key``, the same event however often it is sent."""
        ask = protocol.sending(
            route, payload, session_id=session_id, tenant_id=tenant_id, key=key, stream=stream, callback=callback
        )
        return protocol.accepted(await self._json(ask))

    async def get(self, event_id: str, *, route: str | None = None) -> RunRecord:
        """A run as it stands."""
        return protocol.run(await self._json(protocol.getting(event_id, route)))

    async def wait(self, event_id: str, *, seconds: float | None = None, route: str | None = None) -> RunRecord | None:
        """The run once it has ended; None where that takes longer than ``seconds``."""
        try:
            async with asyncio.timeout(seconds), aclosing(self.stream(event_id, route=route)) as events:
                async for _ in events:
                    pass
                return await self.get(event_id, route=route)
        except TimeoutError:
            return None

    async def stream(
        self, event_id: str, *, route: str | None = None, lineage: bool = False, after: str | None = None
    ) -> AsyncGenerator[Event]:
        """A run's events from an id on, to its end, over breaks: none is lost or told twice."""
        reading, since, tries = protocol.Reading(after), time.monotonic(), 0
        while not reading.ended:
            reading.heard = False
            error: GatewayUnavailable | None = None
            ask = protocol.following(event_id, route, lineage=lineage, after=reading.after)
            try:
                async with aclosing(self._lines(ask, reading)) as lines:
                    async for line in lines:
                        if (event := reading.take(line)) is not None:
                            yield event
            except GatewayUnavailable as refused:
                error = refused
            if reading.heard:
                since, tries = time.monotonic(), 0
            if error is not None and time.monotonic() - since > self._patience:
                raise error
            if not reading.ended:
                await asyncio.sleep(protocol.pause(tries, error))
                tries += 1

    async def _lines(self, ask: Ask, reading: protocol.Reading) -> AsyncGenerator[str]:
        silence = httpx.Timeout(self._timeout, read=protocol.SILENCE)
        asked = self._http.stream(ask.method, ask.path, params=ask.params, headers=ask.headers, timeout=silence)
        try:
            async with asked as response:
                if response.status_code == 204:
                    reading.end()
                elif response.status_code != 200:
                    await response.aread()
                    raise protocol.problem(response)
                async for line in response.aiter_lines():
                    yield line
        except httpx.TransportError as broken:
            raise protocol.unreachable(broken) from broken

    async def cancel(self, event_id: str, *, route: str | None = None) -> str:
        """Cancel a run: ``cancelled``, or ``asked`` where it runs and is told to stop."""
        return str((await self._json(protocol.cancelling(event_id, route)))["status"])

    async def list(self, *, count: int = 50, **filters: str | None) -> AsyncIterator[RunRecord]:
        """Runs, those that began last first. Filters: route, status, session_id, tenant_id, since, until."""
        cursor: str | None = None
        while count > 0:
            page = await self._json(protocol.listing(filters, count, cursor))
            for told in page["runs"]:
                yield protocol.run(told)
            count -= len(page["runs"])
            if (cursor := page["next"]) is None:
                return

    async def _json(self, ask: Ask) -> Any:
        began, tries = time.monotonic(), 0
        while True:
            try:
                response = await self._http.request(
                    ask.method, ask.path, params=ask.params, headers=ask.headers, content=ask.content
                )
                if response.is_success:
                    return response.json()
                raise protocol.problem(response)
            except httpx.TransportError as broken:
                error = protocol.unreachable(broken)
                if time.monotonic() - began > self._patience:
                    raise error from broken
            except GatewayUnavailable as refused:
                error = refused
                if time.monotonic() - began > self._patience:
                    raise
            await asyncio.sleep(protocol.pause(tries, error))
            tries += 1
