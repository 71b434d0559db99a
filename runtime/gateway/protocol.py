"""HTTP/1.1 on one connection, with what the server leaves open: slow or endless headers, full houses, problems."""

from __future__ import annotations

import asyncio
import http
import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from runtime.gateway.problems import MEDIA_TYPE

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application
    from uvicorn.config import Config
    from uvicorn.server import ServerState


AHEAD = 32
"""Requests of one connection that may wait for the answer to another of it."""


class GuardedProtocol(HttpToolsProtocol):
    """The server's own protocol, guarded.

    ``read_timeout``: seconds in which a request's headers have to come, and in which a client takes some of its answer.
    ``max_headers``: bytes that may come without an end of the headers or a piece of the body: they stay in memory until
    then. ``most``: connections of the process.
    """

    read_timeout: float
    max_headers: int
    most: int
    resting: OrderedDict[GuardedProtocol, None]
    """Those that are kept for another request, the longest first: they make room for new ones."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], **more: Any) -> None:
        super().__init__(config=config, server_state=server_state, app_state=app_state, **more)
        self._guard: asyncio.TimerHandle | None = None
        self._in_body = False
        self._moved = False
        self._waiting = 0
        """Bytes that have come since the parser last moved on."""
        self._running: RequestResponseCycle | None = None
        """The request that is answered now; ``cycle`` is the one that came last."""
        self._deaf = False
        """What else comes is not read: the connection ends with the answers that are due."""
        self._untaken = 0
        """Bytes of the answer that the client had not taken when it was last looked at."""
        self._taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base narrows it
        """Begin to wait for the headers; refuse the connection if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most and not self._make_room():
            self._refuse(503, "too_many_connections", "the gateway has as many connections as it may", retry_after=1)
            return
        self._watch()

    def _make_room(self) -> bool:
        if not self.resting:
            return False
        longest, _ = self.resting.popitem(last=False)
        longest.transport.close()
        return True

    def _unset_keepalive_if_required(self) -> None:
        self.resting.pop(self, None)
        super()._unset_keepalive_if_required()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._unwatch()
        self._settle_taking()
        self._unset_keepalive_if_required()  # the base class forgets it where the connection was reset
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End with the answer that is under way, without those that are due after it."""
        self.pipeline.clear()
        if self._running is None or self._running.response_complete:
            self.transport.close()
        else:
            self._running.keep_alive = False

    def pause_writing(self) -> None:
        """The client takes no more for now: whoever takes nothing at all is not waited for for ever."""
        super().pause_writing()
        self._expect_taking()

    def resume_writing(self) -> None:
        """It has taken enough to go on."""
        self._settle_taking()
        super().resume_writing()

    def _expect_taking(self) -> None:
        self._settle_taking()
        self._untaken = self.transport.get_write_buffer_size()
        self._taking = self.loop.call_later(self.read_timeout, self._look_at_taking)

    def _look_at_taking(self) -> None:
        if self.transport.get_write_buffer_size() < self._untaken:
            self._expect_taking()
        else:
            self.transport.abort()

    def _settle_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def data_received(self, data: bytes) -> None:
        """Headers that have come whole are no longer waited for; those of the next request are."""
        if self._deaf or self.transport.is_closing():
            return
        self._moved = False
        super().data_received(data)
        if self._deaf or self.transport.is_closing():
            return
        self._waiting = 0 if self._moved else self._waiting + len(data)
        if self._waiting > self.max_headers:
            self._endless()
        elif not self._unread():
            if self._moved:
                self._unwatch()
            if not self._in_body and self._waiting and self._guard is None:
                self._watch()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. One after the body (a trailer) is none: who has decided by the headers has decided."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Let the request in, if it says once for whom it is (RFC 9112, 3.2). Raises ValueError, which is a 400."""
        self._moved = True
        version, hosts = self.parser.get_http_version(), sum(name == b"host" for name, _ in self.headers)
        if version not in ("1.0", "1.1") or hosts > 1 or (hosts == 0 and version == "1.1"):
            raise ValueError("a request of HTTP/1.1 has one Host")
        if len(self.pipeline) >= AHEAD:
            raise ValueError("too many requests ahead of their answers")
        super().on_headers_complete()
        self._in_body = True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _unsupported_upgrade_warning(self) -> None:
        # Answered as a request that asks for nothing more; what follows may be of the other protocol: it is not read.
        self._end_with_answers()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has come whole; what comes now is the next one's headers."""
        self._moved = True
        super().on_message_complete()
        self._in_body = False

    def on_response_complete(self) -> None:
        """Wait a while for the rest of a body that nobody reads any more: it could go on for ever."""
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None and not self.transport.is_closing():
            self.resting[self] = None
        if self._unread() and not self.transport.is_closing():
            self._watch()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request; after the answers to those before it, with the connection's end alone."""
        if self._in_body and self._give_up():
            self._refuse(400, "bad_request", "this is not an HTTP request's body that can be read")
        elif self._answering():
            self._end_with_answers()
        else:
            self._refuse(400, "bad_request", "this is not an HTTP request that can be read")

    def _endless(self) -> None:
        if self._in_body and self._give_up():
            self._refuse(400, "bad_request", "the body is not framed as it has to be")
        elif self._in_body or self._answering():
            self.transport.close()
        else:
            self._refuse(431, "headers_too_large", "the headers are too large")

    def _give_up(self) -> bool:
        """Let go of the request whose body comes, if nothing of its answer, or of one before it, is written yet."""
        if self.cycle is None or self.cycle is not self._running or self.cycle.response_started:
            return False
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        return True

    def _end_with_answers(self) -> None:
        self._deaf = True
        self._unwatch()
        if self._answering():
            self.cycle.keep_alive = False  # the last of them
        else:
            self.transport.close()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _unread(self) -> bool:
        return self._in_body and self.cycle is not None and self.cycle.response_complete

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
        elif self._answering():
            self._watch()  # the next request's headers, while this one is under way
        elif not self._in_body:
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


def guarded(*, read_timeout: float, max_headers: int, most: int) -> type[GuardedProtocol]:
    """The protocol for a server that takes at most ``most`` connections."""
    limits = {"read_timeout": read_timeout, "max_headers": max_headers, "most": most, "resting": OrderedDict()}
    return type("Protocol", (GuardedProtocol,), limits)
