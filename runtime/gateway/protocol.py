"""HTTP/1.1 on one connection, with what the server leaves open: slow headers, too many connections, problems."""

from __future__ import annotations

import asyncio
import http
import json
import sys
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from runtime.gateway.problems import MEDIA_TYPE

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState


class GuardedProtocol(H11Protocol):
    """The server's own protocol, guarded. ``read_timeout``: seconds in which a request's headers have to come."""

    read_timeout: float
    most: int

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], **more: Any) -> None:
        super().__init__(config=config, server_state=server_state, app_state=app_state, **more)
        self._guard: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn itself narrows it
        """Begin to wait for the headers; refuse the connection if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._refuse(503, "too_many_connections", "the gateway has as many connections as it may", retry_after=1)
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Headers that have come whole are no longer waited for; those of the next request are."""
        unread = self._unread()
        super().data_received(data)
        if self._unread():
            return
        idle = self.conn.their_state is h11.IDLE
        if unread or not idle:
            self._unwatch()
        if idle and self._guard is None and not self.transport.is_closing():
            self._watch()

    def on_response_complete(self) -> None:
        """Wait a while for the rest of a body that nobody reads any more: it could go on for ever."""
        super().on_response_complete()
        if self._unread() and not self.transport.is_closing():
            self._watch()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request with the status that the parser hints at."""
        error = sys.exc_info()[1]  # it is called where that is handled
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        code = "headers_too_large" if status == 431 else "bad_request"
        detail = "the headers are too large" if status == 431 else "this is not an HTTP request that can be read"
        self._refuse(status, code, detail)

    def _unread(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE

    def _watch(self) -> None:
        self._unwatch()
        self._guard = self.loop.call_later(self.read_timeout, self._late)

    def _unwatch(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None

    def _late(self) -> None:
        self._guard = None
        if self.transport.is_closing():
            return
        if self._unread():
            self.transport.close()
        elif self.conn.their_state is h11.IDLE:
            self._refuse(408, "request_timeout", "the headers came too slowly")

    def _refuse(self, status: int, code: str, detail: str, *, retry_after: int | None = None) -> None:
        title = http.HTTPStatus(status).phrase
        body = {
            "type": f"urn:headrace:problem:{code}",
            "title": title,
            "status": status,
            "detail": detail,
            "code": code,
        }
        headers = [f"content-type: {MEDIA_TYPE}", "connection: close"]
        if retry_after is not None:
            body["retry_after"] = retry_after
            headers.append(f"retry-after: {retry_after}")
        text = json.dumps(body).encode()
        headers.append(f"content-length: {len(text)}")
        self.transport.write("\r\n".join([f"HTTP/1.1 {status} {title}", *headers, "", ""]).encode() + text)
        self.transport.close()


def guarded(*, read_timeout: float, most: int) -> type[GuardedProtocol]:
    """The protocol for a server that takes at most ``most`` connections."""
    return type("Protocol", (GuardedProtocol,), {"read_timeout": read_timeout, "most": most})
