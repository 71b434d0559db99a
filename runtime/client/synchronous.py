"""The client without asyncio."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from types import TracebackType
from typing import Any, Self

import httpx

from runtime.client import protocol
from runtime.client.protocol import Accepted, Ask, Event
from runtime.errors import GatewayUnavailable
from shared_models.result import RunRecord


class Client:
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
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._patience = patience
        self._timeout = timeout
        self._http = httpx.Client(
            base_url=url, headers=protocol.headers_of(api_key), timeout=timeout, transport=transport
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(
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
        return protocol.accepted(self._json(ask))

    def get(self, event_id: str, *, route: str | None = None) -> RunRecord:
        """A run as it stands."""
        return protocol.run(self._json(protocol.getting(event_id, route)))

    def wait(self, event_id: str, *, seconds: float | None = None, route: str | None = None) -> RunRecord | None:
        """The run once it has ended; None where that takes longer than ``seconds``."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with closing(self._events(event_id, route, deadline=deadline)) as events:
            for _ in events:
                if deadline is not None and time.monotonic() >= deadline:
                    break
        record = self.get(event_id, route=route)
        return record if record.status.final else None

    def stream(
        self, event_id: str, *, route: str | None = None, lineage: bool = False, after: str | None = None
    ) -> Generator[Event]:
        """A run's events from an id on, to its end, over breaks: none is lost or told twice."""
        with closing(self._events(event_id, route, lineage=lineage, after=after)) as events:
            for event in events:
                if event is not None:
                    yield event

    def _events(
        self,
        event_id: str,
        route: str | None,
        *,
        lineage: bool = False,
        after: str | None = None,
        deadline: float | None = None,
    ) -> Generator[Event | None]:
        """As ``stream``, until a deadline (monotonic clock); None for what is heard beside events."""
        reading, since, tries = protocol.Reading(after), time.monotonic(), 0
        while not reading.ended and (deadline is None or time.monotonic() < deadline):
            reading.heard = False
            error: GatewayUnavailable | None = None
            ask = protocol.following(event_id, route, lineage=lineage, after=reading.after)
            try:
                with closing(self._lines(ask, reading, _silence(deadline))) as lines:
                    for line in lines:
                        yield reading.take(line)
            except GatewayUnavailable as refused:
                error = refused
            if reading.heard:
                since, tries = time.monotonic(), 0
            if error is not None and time.monotonic() - since > self._patience:
                raise error
            if not reading.ended:
                time.sleep(protocol.pause(tries, error))
                tries += 1

    def _lines(self, ask: Ask, reading: protocol.Reading, seconds: float) -> Generator[str]:
        silence = httpx.Timeout(self._timeout, read=seconds)
        asked = self._http.stream(ask.method, ask.path, params=ask.params, headers=ask.headers, timeout=silence)
        try:
            with asked as response:
                if response.status_code == 204:
                    reading.end()
                elif response.status_code != 200:
                    response.read()
                    raise protocol.problem(response)
                yield from response.iter_lines()
        except httpx.TransportError as broken:
            raise protocol.unreachable(broken) from broken

    def cancel(self, event_id: str, *, route: str | None = None) -> str:
        """Cancel a run: ``cancelled``, or ``asked`` where it runs and is told to stop."""
        return str((self._json(protocol.cancelling(event_id, route)))["status"])

    def list(self, *, count: int = 50, **filters: str | None) -> Iterator[RunRecord]:
        """Runs, those that began last first. Filters: route, status, session_id, tenant_id, since, until."""
        cursor: str | None = None
        while count > 0:
            page = self._json(protocol.listing(filters, count, cursor))
            for told in page["runs"]:
                yield protocol.run(told)
            count -= len(page["runs"])
            if (cursor := page["next"]) is None:
                return

    def _json(self, ask: Ask) -> Any:
        began, tries = time.monotonic(), 0
        while True:
            try:
                response = self._http.request(
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
            time.sleep(protocol.pause(tries, error))
            tries += 1


def _silence(deadline: float | None) -> float:
    if deadline is None:
        return protocol.SILENCE
    return min(protocol.SILENCE, max(0.01, deadline - time.monotonic()))
