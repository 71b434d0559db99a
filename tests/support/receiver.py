"""An HTTP server on loopback that takes callbacks: it keeps what comes, and answers as it was told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.harness import DEADLINE

HANG = -1
"""Instead of a status: no answer."""


@dataclass
class Request:
    """One request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Answers with ``script``, one after the other, and then with 204. An answer is a status and header lines."""

    script: list[tuple[int, str]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    port: int = 0
    _came: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=in-the-url"

    async def count(self, n: int) -> list[Request]:
        """The first ``n`` requests, as soon as they have come."""
        async with asyncio.timeout(DEADLINE), self._came:
            await self._came.wait_for(lambda: len(self.requests) >= n)
        return self.requests[:n]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (h.partition(":") for h in head[1:] if h)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            async with self._came:
                self.requests.append(Request(head[0], headers, body))
                self._came.notify_all()
            status, lines = self.script.pop(0) if self.script else (204, "")
            if status == HANG:
                await reader.read()  # until the client has had enough
                return
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 3\r\n{lines}\r\nsay".encode())
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(*script: tuple[int, str] | int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A receiver that listens."""
    made = Receiver([(answer, "") if isinstance(answer, int) else answer for answer in script])
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
