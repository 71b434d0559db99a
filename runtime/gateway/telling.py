"""Telling runs as Server-Sent Events: one run, or all that grows from it, from where a client was."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Send

from runtime.broker.feeds import FROM_START, order
from runtime.broker.fleet import RouteEntry
from runtime.errors import BrokerError, RouteNotFound
from runtime.gateway.auth import Principal
from runtime.gateway.deps import Gateway
from runtime.gateway.problems import RETRY_AFTER, Problem
from runtime.gateway.routes_known import keys_of
from runtime.telemetry import logs
from shared_models.controls import check_id
from shared_models.errors import EnvelopeInvalid
from shared_models.result import RunEvent, RunEventType
from shared_models.strict_json import parse_json

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent, and the record is looked at once more. Also how often it is looked
whether who follows still may."""

MAX_FOLLOWED = 50
"""Runs of a lineage that one stream tells at once."""

_LINE_ID = re.compile(r"[0-9]{1,19}(-[0-9]{1,20})?~?")
_NEVER = 2**63
_LAST = frozenset({RunEventType.COMPLETED, RunEventType.DEAD_LETTERED, RunEventType.CANCELLED})

PART = "~"
"""After a line's id: what the line's run has published was told, the line itself was not."""

_LOG = logs.get_logger("headrace.gateway")

Cursor = list[tuple[str, str, str]]
"""Route, event id and last line of each run that is told; a lineage's ``Last-Event-ID``."""


class EventStream(StreamingResponse):
    """A response of Server-Sent Events, whose source ends with it."""

    media_type = "text/event-stream"

    async def stream_response(self, send: Send) -> None:
        """Send it all."""
        async with aclosing(self.body_iterator):  # type: ignore[type-var]  # it is a generator
            await super().stream_response(send)


class Teller:
    """One stream of events. ``lineage``: follow what the runs publish, too.

    ``check`` raises Problem where who follows may no longer: a key may be revoked while a run takes days.
    """

    def __init__(
        self,
        gateway: Gateway,
        principal: Principal,
        start: Cursor,
        *,
        root: str,
        lineage: bool,
        check: Callable[[], Awaitable[object]],
    ) -> None:
        self._gateway = gateway
        self._principal = principal
        self._check = check
        self._checked = time.monotonic()
        self._lineage = lineage
        self._start = start
        self._root = root
        self._wake = asyncio.Event()
        self._told: list[_Told] = []
        self._left_out: list[str] = []

    async def events(self) -> AsyncIterator[bytes]:
        """The stream, to its end: ``end`` says that all is told, ``unavailable`` that Redis is away."""
        try:
            for route, event_id, after in self._start:
                self._follow(await self._gateway.routes.get(route), event_id, after)
            yield b"retry: 2000\n\n"
            last_sent = time.monotonic()
            while self._told:
                self._wake.clear()
                await self._may_go_on()
                async for chunk in self._news():
                    yield chunk
                    last_sent = time.monotonic()
                    await self._may_go_on()
                if over := self._over():
                    yield over
                    return
                if self._told and not await self._waited(last_sent + HEARTBEAT - time.monotonic()):
                    yield b": heartbeat\n\n"
                    last_sent = time.monotonic()
                    for one in self._told:
                        one.behind = True
            yield _event("end", {})
        except Problem as refused:
            _LOG.info("stream.ended", code=refused.code)
            yield b": this key is not good any more\n\n"
        except (BrokerError, RouteNotFound):
            yield _event("unavailable", _UNAVAILABLE)
        finally:
            for one in self._told:
                one.close()

    def _over(self) -> bytes:
        """What is said last where no more can be told; empty: it goes on."""
        if any(one.over == "lost" for one in self._told):
            return _event("unavailable", _UNAVAILABLE)
        if self._gateway.ending or any(one.over for one in self._told):
            return b": the gateway is ending; come again\n\n"
        return b""

    async def _may_go_on(self) -> None:
        if time.monotonic() - self._checked >= HEARTBEAT:
            with suppress(BrokerError):  # nothing is told either while Redis is away
                await self._check()
            self._checked = time.monotonic()

    async def _waited(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    async def _news(self) -> AsyncIterator[bytes]:
        for one in list(self._told):
            async for kind, data, line in one.news():
                # First what grows from it: who goes on after this line is to find it in the line's id.
                missing = await self._grow(line) if line is not None and self._lineage else []
                yield self._chunk(one, kind, data)
                for chunk in missing:
                    yield chunk
            if one.ended:
                one.close()
                self._told.remove(one)

    def _chunk(self, one: _Told, kind: str, data: Mapping[str, Any]) -> bytes:
        told = {**data, "event_id": one.event_id, "route": one.route.route}
        return _event(kind, told, line_id=self._cursor() if self._lineage else one.told)

    def _cursor(self) -> str:
        text = json.dumps([(one.route.route, one.event_id, one.told) for one in self._told], separators=(",", ":"))
        return base64.urlsafe_b64encode(zlib.compress(text.encode())).decode()

    async def _grow(self, line: RunEvent) -> list[bytes]:
        """Follow what a run has published, where routes read it."""
        published = line.data.get("published")
        if line.type is not RunEventType.COMPLETED or not isinstance(published, list):
            return []
        routes, missing = (await self._gateway.routes.all()).values(), []
        for one in published:
            for route in [route for route in routes if route.stream == one["stream"]]:
                if len(self._told) < MAX_FOLLOWED:
                    self._follow(route, one["event_id"], FROM_START)
                else:
                    missing.append(_event("gap", {"event_id": one["event_id"], "route": route.route}))
        return missing

    def _follow(self, route: RouteEntry, event_id: str, after: str) -> None:
        first = event_id == self._root
        self._told.append(_Told(self._gateway, self._principal, route, event_id, after, wake=self._wake, first=first))


class _Told:
    """One run of a stream."""

    def __init__(
        self,
        gateway: Gateway,
        principal: Principal,
        route: RouteEntry,
        event_id: str,
        after: str,
        *,
        wake: asyncio.Event,
        first: bool,
    ) -> None:
        self.route = route
        self.event_id = event_id
        self.told = after
        self.after = _line_before(after)
        self.behind = True
        self.ended = False
        self._keys = keys_of(route)
        self._feeds = gateway.broker.feeds
        self._principal = principal
        self._first = first
        self._known = False
        self._lines = gateway.following.subscribe(self._keys, event_id, self.after, wake=wake)

    @property
    def over(self) -> str:
        """Why nothing more comes, if so."""
        return self._lines.over

    def close(self) -> None:
        """Follow it no more."""
        self._lines.close()

    async def news(self) -> AsyncIterator[tuple[str, Mapping[str, Any], RunEvent | None]]:
        """What is to be told now: a kind, its data, and the line that it is."""
        while not self.ended:
            if self.behind or self._lines.behind:
                async for told in self._catch_up():
                    yield told
            lines = self._lines.take()
            if not lines:
                return
            if not self._known:  # whose run it is stands in its record, which is there by now
                self.behind = True
                self._lines.catch_up(self.after)
                continue
            for line in lines:
                for told in self._line(line):
                    yield told
                # After its end there may be more: it was requeued.
                self.behind |= line.type in _LAST

    async def _catch_up(self) -> AsyncIterator[tuple[str, Mapping[str, Any], RunEvent | None]]:
        while True:
            self.behind = self._lines.behind = False
            before = self.after
            page = await self._feeds.page(self._keys, self.event_id, after=self.after)
            self._known = page.status is not None
            if self._known and not self._principal.sees(page.tenant_id):
                self.ended = True
                return
            if page.status is None and page.lines and self._principal.tenant is not None:
                self.ended = True  # nothing says whose it is
                return
            if page.gap:
                yield "gap", {"after": self.after, "next": page.lines[0].id if page.lines else None}, None
            for line in page.lines:
                for told in self._line(line):
                    yield told
            if page.last == before:
                # A first run without a record is forgotten; one that is to grow is not there yet.
                self.ended = page.status.final if page.status is not None else self._first
                break
            self.after = page.last
        self._lines.catch_up(self.after)

    def _line(self, line: RunEvent) -> Iterator[tuple[str, Mapping[str, Any], RunEvent | None]]:
        """A line of the feed; before the last line of a run that has published, what it has."""
        published, part = line.data.get("published"), f"{line.id}{PART}"
        if line.type is RunEventType.COMPLETED and published and self.told != part:
            self.told = part
            yield RunEventType.PUBLISHED.value, {"published": published, "at": line.at}, None
        self.told = self.after = line.id
        yield line.type.value, {**line.data, "at": line.at}, line


async def is_told(gateway: Gateway, start: Cursor) -> bool:
    """Whether all of these have ended, and nothing is left to tell of them."""
    for route, event_id, after in start:
        keys = keys_of(await gateway.routes.get(route))
        page = await gateway.broker.feeds.page(keys, event_id, after=_line_before(after))
        if page.lines or page.status is None or not page.status.final:
            return False
    return True


def _line_before(told: str) -> str:
    """The id after which a feed is to be read, for a client that was told this one, or a part of its line."""
    if not told.endswith(PART):
        return told
    milliseconds, _, number = told.removesuffix(PART).partition("-")
    if int(number or 0):
        return f"{milliseconds}-{int(number) - 1}"
    return f"{max(0, int(milliseconds) - 1)}-{2**64 - 1}"


def line_id(text: str | None) -> str | None:
    """Where a client was, of one run. Raises Problem 422."""
    if text is None or not text.strip():
        return None
    if not _is_line(text.strip()):
        raise _no_line()
    return text.strip()


def cursor(text: str | None) -> Cursor | None:
    """Where a client was, of a lineage. Raises Problem 422."""
    if text is None or not text.strip():
        return None
    try:
        inflate = zlib.decompressobj()
        plain = inflate.decompress(base64.urlsafe_b64decode(text.strip()), 64 * 1024)
        told = parse_json(plain.decode(), field="Last-Event-ID")
        runs = [(str(route), check_id(event_id, field="Last-Event-ID"), str(after)) for route, event_id, after in told]
    except (AttributeError, EnvelopeInvalid, TypeError, ValueError, zlib.error) as error:
        raise _no_line() from error
    if len(runs) > MAX_FOLLOWED or not all(_is_line(after) for _, _, after in runs):
        raise _no_line()
    return runs


def _is_line(text: str) -> bool:
    """Whether a text can be a line's id; what Redis would not take is none."""
    return _LINE_ID.fullmatch(text) is not None and max(order(text.removesuffix(PART))) < _NEVER


def _no_line() -> Problem:
    return Problem(422, "request_invalid", "Last-Event-ID: is none that this stream gave")


_UNAVAILABLE = {"code": "redis_unavailable", "retry_after": RETRY_AFTER}


def _event(kind: str, data: Mapping[str, Any], *, line_id: str | None = None) -> bytes:
    head = f"id: {line_id}\n" if line_id is not None else ""
    # ASCII: a lone surrogate has no UTF-8, and an odd line separator would end the line.
    return f"{head}event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode("ascii")
