"""What a client may send, how much and how slowly; and headers that every answer has."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from http import HTTPStatus

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.gateway import problems
from runtime.gateway.problems import Problem
from runtime.settings import GatewaySettings
from runtime.telemetry import logs

SLOWEST = 16 * 1024
"""Bytes a second that a body has to come with, once the time to read has passed."""

FILES_AT = "/v1/routes/"
"""Below this, a request may bring files."""

_CLOSE = {"Connection": "close"}
_LOG = logs.get_logger("headrace.gateway.http")


def is_form(content_type: bytes) -> bool:
    """Whether a body is a form that may hold files."""
    return content_type.partition(b";")[0].strip().lower() == b"multipart/form-data"


class Borders:
    """ASGI middleware: bounds a body's size and the time it takes to come."""

    def __init__(self, app: ASGIApp, *, settings: GatewaySettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, closing = time.monotonic(), 0, False
        body = _Body(receive, most=self._most(scope), seconds=self._settings.read_timeout)

        async def answer(message: Message) -> None:
            nonlocal status, closing
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.setdefault("X-Content-Type-Options", "nosniff")
                headers.setdefault("Cache-Control", "no-store")
                closing = headers.get("connection") == "close" and status != HTTPStatus.REQUEST_TIMEOUT
            elif closing and not message.get("more_body", False):
                # Who still sends would lose the answer if the connection were closed over what they send.
                await send({**message, "more_body": True})
                await body.drain()
                message = {"type": message["type"], "body": b"", "more_body": False}
            await send(message)

        if refused := self._refused(scope):
            await problems.response(refused, scope["path"])(scope, receive, answer)
        else:
            await self._app(scope, body.receive, answer)
        # Without the query: a client may have put a secret there.
        _LOG.debug("http.answered", method=scope["method"], path=scope["path"], status=status, ms=_ms(began))

    def _refused(self, scope: Scope) -> Problem | None:
        """Why a request is refused by its headers."""
        # The parser bounds only headers that come in several pieces.
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > self._settings.max_headers:
            return Problem(431, "headers_too_large", "the headers are too large", headers=_CLOSE)
        if _header(scope, b"content-length") and _header(scope, b"transfer-encoding"):
            # Who is in front may have read it the other way, and another client's request as this one's body.
            return Problem(400, "bad_request", "the body's length is told in two ways", headers=_CLOSE)
        if _announced(scope) > (most := self._most(scope)):
            return _too_large(most)
        return None

    def _most(self, scope: Scope) -> int:
        """Bytes that the body may have: files do not stay in memory, as every other body does."""
        brings_files = scope["path"].startswith(FILES_AT) and is_form(_header(scope, b"content-type"))
        return self._settings.max_upload if brings_files else self._settings.max_body


class _Body:
    """A request's body as it comes."""

    def __init__(self, receive: Receive, *, most: int, seconds: float) -> None:
        self._receive = receive
        self._most = most
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._size = 0
        self._whole = False

    async def receive(self) -> Message:
        """The next message. Raises Problem 413 or 408."""
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout(self._until + self._size / SLOWEST - time.monotonic()):
                message = await self._receive()
        except TimeoutError as error:
            raise Problem(408, "request_timeout", "the body came too slowly", headers=_CLOSE) from error
        self._size += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._size > self._most:
            raise _too_large(self._most)
        return message

    async def drain(self) -> None:
        """Read and forget what is left, for as long as a body may take to come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                while not self._whole:
                    message = await self._receive()
                    self._whole = not message.get("more_body", False)


def _too_large(most: int) -> Problem:
    return Problem(413, "payload_too_large", f"the body is larger than {most:,} bytes", headers=_CLOSE)


def _announced(scope: Scope) -> int:
    value = _header(scope, b"content-length")
    return int(value) if value.isdigit() else 0


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == wanted), b"")


def _ms(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)
