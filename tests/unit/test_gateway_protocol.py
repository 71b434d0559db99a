"""The gateway's side of a connection: what reaches the application of a client that leaves or a server that ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request

from runtime.gateway import problems
from runtime.gateway.protocol import guarded
from runtime.gateway.server import _config, listen
from runtime.settings import Settings


class App:
    """Answers at once, but for /hold: that waits until the client has gone, or it may."""

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.gone = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["path"] == "/hold":
            assert (await receive())["type"] == "http.request"
            self.held.set()
            going, let_go = asyncio.create_task(receive()), asyncio.create_task(self.let_go.wait())
            await asyncio.wait({going, let_go}, return_when=asyncio.FIRST_COMPLETED)
            let_go.cancel()
            if going.done():
                assert going.result()["type"] == "http.disconnect"
                self.gone.set()
                return
            going.cancel()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def served(
    app: App | Much, *, read_timeout: float = 5, most: int = 10
) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    listening = listen("127.0.0.1", 0)
    protocol = guarded(read_timeout=read_timeout, max_headers=8192, most=most)
    config = uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_config=None)  # type: ignore[arg-type]  # an ASGI app
    server = uvicorn.Server(config)
    running = asyncio.create_task(server._serve([listening]))
    try:
        yield server, listening.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait_for(running, 10)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode()


async def test_a_client_that_leaves_is_noticed_though_it_has_asked_for_more() -> None:
    app = App()
    async with served(app) as (_, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get("/hold") + get("/next"))
        await asyncio.wait_for(app.held.wait(), 5)
        writer.close()
        await asyncio.wait_for(app.gone.wait(), 5)


async def test_a_server_that_ends_gives_the_answer_that_is_under_way() -> None:
    app = App()
    async with served(app) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            writer.write(get("/hold") + get("/next"))
            await asyncio.wait_for(app.held.wait(), 5)
            for connection in server.server_state.connections:
                connection.shutdown()
            app.let_go.set()
            told = await asyncio.wait_for(reader.read(), 5)
    assert told.count(b"HTTP/1.1 200") == 1
    assert b"connection: close" in told


def test_a_client_that_has_gone_is_no_failure_of_the_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    request = Request({"type": "http", "path": "/x", "headers": [], "query_string": b""})
    assert problems.answer_to(request, ClientDisconnect()).status_code == 400
    assert "gateway.failed" not in "".join(capsys.readouterr())


async def test_who_rests_makes_room_and_who_is_answered_does_not() -> None:
    app = App()
    async with served(app, most=2) as (_, port):
        lines = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            lines.append((reader, writer))
            writer.write(get("/"))
            assert (await asyncio.wait_for(reader.readline(), 5)).split()[1] == b"200"
        assert (await asyncio.wait_for(lines[0][0].read(), 5)).endswith(b"\r\n\r\n"), "the longest at rest has ended"
        for _, writer in lines[1:]:
            writer.write(get("/hold"))
        await asyncio.wait_for(app.held.wait(), 5)
        lines.append(await asyncio.open_connection("127.0.0.1", port))
        assert (await asyncio.wait_for(lines[-1][0].readline(), 5)).split()[1] == b"503"
        app.let_go.set()
        for _, writer in lines:
            writer.close()


async def test_nothing_is_left_of_a_connection_that_was_reset() -> None:
    async with served(App()) as (server, port):
        line = socket.create_connection(("127.0.0.1", port))
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.sendall(get("/"))
        while not (connections := list(server.server_state.connections)) or not connections[0].resting:
            await asyncio.sleep(0)
        [protocol] = connections
        line.close()
        async with asyncio.timeout(5):
            while server.server_state.connections:
                await asyncio.sleep(0)
        assert protocol.timeout_keep_alive_task is None
        assert not protocol.resting


class Much:
    """Answers with more than a client's and a server's buffers hold."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        self.ended.set()


async def test_a_client_that_takes_nothing_of_its_answer_does_not_keep_its_connection() -> None:
    app = Much()
    async with served(app, read_timeout=0.2) as (server, port):
        with closing(socket.create_connection(("127.0.0.1", port))) as line:
            line.sendall(get("/"))
            await asyncio.wait_for(app.ended.wait(), 10)
            assert not server.server_state.connections


async def test_one_that_takes_some_of_it_keeps_it() -> None:
    protocol = object.__new__(guarded(read_timeout=60, max_headers=8192, most=10))
    transport = SimpleNamespace(left=[50, 40, 40], aborted=False)
    transport.get_write_buffer_size = lambda: transport.left[0]
    transport.abort = lambda: setattr(transport, "aborted", True)
    protocol.transport, protocol.loop, protocol._taking = transport, asyncio.get_running_loop(), None
    protocol._expect_taking()
    for aborted in (False, True):
        transport.left.pop(0)
        protocol._look_at_taking()
        assert transport.aborted is aborted
    protocol._settle_taking()


def test_a_connection_outlives_those_of_a_load_balancer_in_front() -> None:
    """One that the gateway closes as a request is on its way is a 502 to whoever sent it: they keep theirs for 60 s."""
    settings = Settings()
    assert _config(App(), settings).timeout_keep_alive == settings.gateway.keep_alive > 60  # type: ignore[arg-type]  # an ASGI app
