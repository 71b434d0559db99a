"""Connections that are taken and given back, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from runtime.engine.accelerators import connections
from runtime.engine.accelerators.connections import LIMITS, Connections

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"


class Server:
    """Answers requests when it is let, and counts connections."""

    def __init__(self) -> None:
        self.url = ""
        self.opened = 0
        self.open = 0
        self.waiting = 0
        self.let = asyncio.Event()
        self.let.set()
        self.change = asyncio.Condition()
        self.answer = HEAD + b"ok"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._count(opened=1, open=1)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await self._count(waiting=1)
                await self.let.wait()
                await self._count(waiting=-1)
                writer.write(self.answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            await self._count(open=-1)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something to hold."""
        async with asyncio.timeout(10), self.change:
            await self.change.wait_for(holds)

    async def _count(self, **by: int) -> None:
        async with self.change:
            for name, number in by.items():
                setattr(self, name, getattr(self, name) + number)
            self.change.notify_all()


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    made = Server()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    yield made
    made.let.set()
    server.close()
    await server.wait_closed()


class Made:
    """What the connections were made with."""

    def __init__(self) -> None:
        self.transports: list[httpx.AsyncHTTPTransport] = []
        self.connections = Connections(self._make)
        self.client = httpx.AsyncClient(transport=self.connections, trust_env=False)

    def _make(self) -> httpx.AsyncBaseTransport:
        self.transports.append(httpx.AsyncHTTPTransport(verify=False, limits=LIMITS))
        return self.transports[-1]


@pytest.fixture
def made() -> Iterator[Made]:
    return Made()


async def many(client: httpx.AsyncClient, server: Server, number: int) -> list[Any]:
    """So many requests at once, answered when all are there."""
    server.let.clear()
    asked = [asyncio.ensure_future(client.get(server.url)) for _ in range(number)]
    await server.until(lambda: server.waiting == number)
    server.let.set()
    return await asyncio.gather(*asked)


async def test_a_connection_is_used_again(made: Made) -> None:
    async with serving() as server, made.client as client:
        for _ in range(5):
            assert (await client.get(server.url)).text == "ok"
        assert server.opened == len(made.transports) == 1


async def test_as_many_as_there_are_requests_at_once_and_all_are_kept(made: Made) -> None:
    async with serving() as server, made.client as client:
        for _ in range(3):
            assert {answer.text for answer in await many(client, server, 150)} == {"ok"}
        assert server.opened == server.open == 150


async def test_those_that_rested_too_long_are_closed_without_another_request(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEPT", 0.05)
    async with serving() as server, made.client as client:
        await many(client, server, 5)
        await server.until(lambda: server.open == 0)
        assert not made.connections._resting and made.connections._timer is None
        assert (await client.get(server.url)).text == "ok"


async def test_one_that_is_used_does_not_rest(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(connections.time, "monotonic", lambda: now)
    async with serving() as server, made.client as client:
        await many(client, server, 5)
        now += connections.KEPT / 2
        await client.get(server.url)
        now += connections.KEPT / 2 + 0.1
        made.connections._sweep()
        await server.until(lambda: server.open == 1)
        assert made.connections._timer is not None, "for the one that is left"
        await client.get(server.url)
        assert server.opened == 5


async def test_one_that_the_server_has_closed_is_not_used(made: Made) -> None:
    async with serving() as server, made.client as client:
        server.answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
        for _ in range(3):
            assert (await client.get(server.url)).text == "ok"
        assert server.opened == 3 and len(made.transports) == 1


async def test_a_request_that_fails_spoils_no_other(made: Made) -> None:
    async with serving() as server, made.client as client:
        server.answer = b"nonsense\r\n\r\n"
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(server.url)
        server.answer = HEAD + b"ok"
        assert (await client.get(server.url)).text == "ok"
        assert server.opened == 2


@pytest.mark.parametrize("warm", [False, True])
async def test_a_request_that_is_cancelled_anywhere_spoils_no_other(*, warm: bool) -> None:
    """A connection that httpcore gave up in the midst of a step is never used again, so nobody may wait for it."""
    for turns in range(40):
        made = Made()
        async with serving() as server, made.client as client:
            if warm:
                await client.get(server.url)
            asked = asyncio.ensure_future(client.get(server.url))
            for _ in range(turns):
                await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait([asked])
            for _ in range(2):
                assert (await client.get(server.url, timeout=httpx.Timeout(10, pool=0.5))).text == "ok", turns


async def test_an_answer_that_is_left_in_the_midst_takes_its_connection_along(made: Made) -> None:
    async with serving() as server, made.client as client:
        server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbegun"
        async with client.stream("GET", server.url) as answer:
            parts = answer.aiter_bytes()
            assert await anext(parts) == b"begun"
        server.answer = HEAD + b"ok"
        assert (await client.get(server.url)).text == "ok"
        assert server.opened == 2
        await answer.aclose()
        assert len(made.connections._resting) == 1, "given back once"


async def test_closing_closes_those_in_use_when_they_are_given_back(made: Made) -> None:
    async with serving() as server:
        await many(made.client, server, 3)
        async with made.client.stream("GET", server.url) as answer:
            await made.connections.aclose()
            await server.until(lambda: server.open == 1)
            assert await answer.aread() == b"ok"
        await server.until(lambda: server.open == 0)
        assert not made.connections._resting


class Unclosable(httpx.AsyncBaseTransport):
    """Answers, and fails to close."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"ok")

    async def aclose(self) -> None:
        raise OSError("cannot be closed")


async def test_a_connection_that_does_not_close_is_nobodys_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(connections.time, "monotonic", lambda: now)
    made = Connections(Unclosable)
    async with httpx.AsyncClient(transport=made) as client:
        assert (await client.get("http://x.test/")).text == "ok"
        now += connections.KEPT
        made._sweep()
        assert (await client.get("http://x.test/")).text == "ok"
    assert not made._resting and not made._closing
