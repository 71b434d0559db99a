"""What a client may not do to a gateway that listens: too large, too slow, not HTTP, too many."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing, suppress

import httpx
import pytest

from tests.support.gateway import GatewayProcess, gateway_process, route_entry
from tests.support.harness import client
from tests.support.servers import RedisServer

EVENTS = "/v1/routes/hello/events"


@pytest.fixture(scope="module")
def gateway(valkey_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    environ = {
        "HEADRACE_GATEWAY__MAX_BODY": "100000",
        "HEADRACE_GATEWAY__MAX_HEADERS": "8192",
        "HEADRACE_GATEWAY__READ_TIMEOUT": "0.5",
        "HEADRACE_GATEWAY__CONNECTIONS": "20",
    }
    with gateway_process(valkey_server.url, tmp_path_factory.mktemp("gateway"), **environ) as made:
        yield made


@pytest.fixture(autouse=True)
async def known(valkey_server: RedisServer) -> None:
    valkey_server.execute("FLUSHALL")
    async with client(valkey_server.url) as c:
        await c.broker.fleet.register([route_entry("hello")])


async def talk(gateway: GatewayProcess, *parts: bytes) -> tuple[int, dict[str, object], bytes]:
    """Send bytes as they are; the answer's status and problem, once the gateway has closed the connection."""
    url = httpx.URL(gateway.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    with closing(writer):
        for part in parts:
            writer.write(part)
            await writer.drain()
        answer = await asyncio.wait_for(reader.read(), 10)
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body), head


def post(body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST " + EVENTS.encode() + b" HTTP/1.1", b"host: localhost", b"content-type: application/json", *headers]
    return b"\r\n".join([*lines, b"", b""]) + body


async def test_a_body_over_the_limit_is_refused_announced_or_not(gateway, valkey_server):
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        done = await http.post(EVENTS, json={"input_value": "x" * 100_001})
        assert (done.status_code, done.json()["code"]) == (413, "payload_too_large")

        async def pieces():
            for _ in range(100):
                yield b"x" * 10_000

        done = await http.post(EVENTS, content=pieces(), headers={"content-type": "application/json"})
        assert (done.status_code, done.json()["code"]) == (413, "payload_too_large")
        assert (await http.post(EVENTS, json={"input_value": "x" * 90_000})).status_code == 202
    assert valkey_server.execute("XLEN", "flows:hello") == 1


async def test_a_slow_body_is_given_up(gateway, valkey_server):
    status, problem, head = await talk(gateway, post(b'{"a', b"content-length: 100"))
    assert (status, problem["code"]) == (408, "request_timeout")
    assert b"connection: close" in head
    assert valkey_server.execute("EXISTS", "flows:hello") == 0


async def test_slow_headers_are_given_up(gateway):
    for parts in ((), (b"GET /healthz HT",), (b"GET /healthz HTTP/1.1\r\nhost: a\r\nx-a: b\r\n",)):
        status, problem, _ = await talk(gateway, *parts)
        assert (status, problem["code"]) == (408, "request_timeout")


@pytest.mark.parametrize(
    ("length", "piece"), [(b"content-length: 9999", b"x"), (b"transfer-encoding: chunked", b"1\r\nx\r\n")]
)
async def test_a_body_that_nobody_reads_holds_no_connection(gateway, length, piece):
    """Its request is answered at once; what still comes of it, a byte now and then, must end too."""
    url = httpx.URL(gateway.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\n" + length + b"\r\n\r\n")
    ended = asyncio.create_task(reader.read())
    async with asyncio.timeout(10):
        while not (await asyncio.wait({ended}, timeout=0.05))[0]:
            writer.write(piece)
    writer.close()
    assert ended.exception() is not None or (await ended).startswith(b"HTTP/1.1 404")


async def test_after_a_body_that_nobody_read_the_connection_goes_on(gateway):
    url = httpx.URL(gateway.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    with closing(writer):
        for _ in range(3):
            writer.write(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n")
            assert (await asyncio.wait_for(reader.readuntil(b"}"), 10)).startswith(b"HTTP/1.1 404")
            writer.write(b"late")


async def test_large_headers_are_refused(gateway):
    for size in (9_000, 60_000):
        status, problem, _ = await talk(gateway, post(b"{}", b"content-length: 2", b"x-a: " + b"a" * size))
        assert (status, problem["code"]) == (431, "headers_too_large"), size


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01 not http\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: a\r\nbad header\r\n\r\n",
        post(b"{}", b"content-length: 2", b"content-length: 3"),
        post(b"0\r\n\r\n", b"transfer-encoding: chunked", b"transfer-encoding: gzip, chunked"),
        post(b"{}", b"content-length: 2", b"x-a: a\x00b"),
        post(b"2\r\n{}\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\n", b"transfer-encoding: chunked", b"content-length: 2"),
    ],
)
async def test_what_is_not_http_is_refused(gateway, valkey_server, request_bytes):
    status, problem, _ = await talk(gateway, request_bytes)
    assert 400 <= status < 600
    assert problem["status"] == status
    assert valkey_server.execute("EXISTS", "flows:hello") == 0


async def test_nothing_of_a_request_becomes_a_header_of_the_answer_or_a_field(gateway, valkey_server):
    """Line breaks that a client smuggles in stay values, or are refused."""
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        for params, headers in (
            ({"session_id": "a\r\nx-evil: 1"}, {}),
            ({"tenant_id": "a\nb"}, {}),
            ({}, {"idempotency-key": b"a\xc2\x85b"}),
        ):
            done = await http.post(EVENTS, params=params, headers=headers, json={})
            assert done.status_code == 422, done.text
            assert "x-evil" not in done.headers
        done = await http.post("/v1/routes/a%0d%0ax-evil:%201/events", json={})
        assert (done.status_code, "x-evil" in done.headers) == (404, False)
    assert valkey_server.execute("EXISTS", "flows:hello") == 0


async def test_connections_over_the_limit_are_told_to_come_later(gateway):
    url = httpx.URL(gateway.url)
    lines = [await asyncio.open_connection(url.host, url.port) for _ in range(21)]
    answers = asyncio.gather(*(asyncio.wait_for(reader.read(), 10) for reader, _ in lines))
    refused = [answer for answer in await answers if answer.startswith(b"HTTP/1.1 503")]
    for _, writer in lines:
        writer.close()
    assert len(refused) >= 1
    assert b"retry-after: 1" in refused[0]
    assert json.loads(refused[0].partition(b"\r\n\r\n")[2])["code"] == "too_many_connections"


@pytest.mark.parametrize("host", [(), (b"host: localhost", b"host: evil.example")], ids=["none", "two"])
async def test_a_request_has_one_host(gateway, host):
    request = b"\r\n".join([b"GET /healthz HTTP/1.1", *host, b"", b""])
    status, problem, _ = await talk(gateway, request)
    assert (status, problem["code"]) == (400, "bad_request")


async def test_what_comes_after_a_body_is_no_header(gateway, valkey_server):
    """A trailer could name a key or a tenant after those that decide have looked."""
    body = b"2\r\n{}\r\n0\r\nidempotency-key: late\r\n\r\n"
    chunked = post(body, b"transfer-encoding: chunked", b"connection: close")
    for _ in range(2):
        assert (await talk(gateway, chunked))[0] == 202
    assert valkey_server.execute("XLEN", "flows:hello") == 2


async def test_headers_after_a_body_that_do_not_end_are_not_kept(gateway):
    url = httpx.URL(gateway.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    ended, sent = asyncio.create_task(reader.read()), 0
    with closing(writer):
        writer.write(post(b"2\r\n{}\r\n0\r\nx-a: ", b"transfer-encoding: chunked"))
        with suppress(ConnectionError):
            while not (await asyncio.wait({ended}, timeout=0.01))[0]:
                assert sent < 100_000, "the gateway keeps on reading"
                writer.write(b"a" * 2048)
                await writer.drain()
                sent += 2048
    await asyncio.wait({ended})


async def test_an_upgrade_that_is_not_offered_is_answered_as_a_request(gateway):
    status, _, _ = await talk(
        gateway, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nupgrade: h2c\r\nconnection: upgrade, close\r\n\r\n"
    )
    assert status == 200


async def answers(gateway: GatewayProcess, *parts: bytes) -> list[bytes]:
    """Send bytes; the status lines of what comes until the gateway closes the connection."""
    url = httpx.URL(gateway.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    told = b""
    with closing(writer), suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(10):
            while piece := await reader.read(1 << 16):
                told += piece
    return [line for line in told.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


async def test_what_is_not_http_after_a_request_leaves_it_its_answer(gateway, valkey_server):
    good = post(b"{}", b"content-length: 2")
    assert await answers(gateway, good + b"\x16\x03\x01 not http\r\n\r\n") == [b"HTTP/1.1 202 Accepted"]
    assert valkey_server.execute("XLEN", "flows:hello") == 1


@pytest.mark.parametrize("body", [b"-1\r\n", b"2\n{}", b"2\r\n{}0\r\n\r\n", b"fffffffffffffffff\r\n"])
async def test_a_body_that_is_framed_wrongly_is_refused(gateway, valkey_server, body):
    status, problem, _ = await talk(gateway, post(body, b"transfer-encoding: chunked"))
    assert (status, problem["code"]) == (400, "bad_request")
    assert valkey_server.execute("EXISTS", "flows:hello") == 0


@pytest.mark.parametrize("version", [b"HTTP/0.9", b"HTTP/2.0"])
async def test_other_versions_are_refused(gateway, version):
    status, _, _ = await talk(gateway, b"GET /healthz " + version + b"\r\nhost: localhost\r\n\r\n")
    assert status == 400


async def test_requests_far_ahead_of_their_answers_end_the_connection(gateway):
    """A server that parsed all that comes would do nothing else, and keep it all."""
    one = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    told = await answers(gateway, *[one * 1000] * 5)
    # How many of the answers arrive is the kernel's affair, where the client still sends.
    assert told == [b"HTTP/1.1 200 OK"] * len(told)
    assert len(told) < 100


async def test_what_comes_after_an_upgrade_is_not_read(gateway, valkey_server):
    upgrade = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    assert await answers(gateway, upgrade + post(b"{}", b"content-length: 2")) == [b"HTTP/1.1 200 OK"]
    assert valkey_server.execute("EXISTS", "flows:hello") == 0
