"""The gateway's answer to an event, at a steady rate: from when a request was due to its 202, the event in the stream.

An open loop: requests are sent when they are due, not when others were answered, and each is measured from when it was
due, so that a gateway that stops for a while pays for all that it kept waiting.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from tests.benchmarks.figures import Row, Value, quantile, quiet
from tests.support.gateway import gateway_process, route_entry
from tests.support.harness import client
from tests.support.servers import RedisServer, valkey_binary

RATE = 500
"""Requests a second."""

LINES = 64
"""Connections that are kept open."""

TARGET = 10.0
"""ms that 99 of 100 may take."""

BODY = b'{"input_value": "hello", "context": {"order": 17}}'


@dataclass
class Load:
    """What a stretch of requests gave: ms from due to answered, and the statuses.

    ``stolen``: the percentage of the machine's time that its host gave to others.
    """

    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    stolen: float = 0.0


class Line:
    """One kept connection of a client that costs little: it reads no more of an answer than it must."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, request: bytes) -> int:
        """Send one request; the answer's status."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        await self._reader.readexactly(length)
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        self._writer.close()


async def steady(url: str, path: str, *, rate: int, seconds: float) -> Load:
    """Requests at a steady rate."""
    parts = urlsplit(url)
    lines: asyncio.Queue[Line] = asyncio.Queue()
    for _ in range(LINES):
        lines.put_nowait(Line(*await asyncio.open_connection(parts.hostname, parts.port)))
    head = f"POST {path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(BODY)}\r\n\r\n".encode() + BODY
    load = Load()

    async def one(due: float) -> None:
        line = await lines.get()
        load.statuses[await line.post(request)] += 1
        load.latencies.append((time.perf_counter() - due) * 1000)
        lines.put_nowait(line)

    gc.collect()
    gc.freeze()  # a collection of all that is imported here would hold every request up for 0.1 s
    psutil.cpu_times_percent()  # what is asked for next is counted from here
    began, tasks = time.perf_counter(), set[asyncio.Task[None]]()
    for number in range(int(rate * seconds)):
        due = began + number / rate
        if (early := due - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        tasks.add(task := asyncio.create_task(one(due)))
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    load.stolen = psutil.cpu_times_percent().steal
    while not lines.empty():
        lines.get_nowait().close()
    return load


async def measure(*, quick: bool = False) -> list[Row]:
    """Latency at a steady rate, and what a request costs; in turn with the least that a server could do.

    In several stretches, each with its own 99th percentile and what the host took of the machine in it: where that is
    another's for a tenth of a second, each request of that time is late. All requests count.
    """
    times, seconds = (1, 2.0) if quick else (5, 6.0)
    with tempfile.TemporaryDirectory() as home, RedisServer(valkey_binary()) as server, bare(server.url) as url:
        async with client(server.url) as c:
            await c.broker.fleet.register([route_entry("hello")])
        with gateway_process(server.url, Path(home)) as gateway:
            path = "/v1/routes/hello/events"
            for each in (gateway.url, url):
                await steady(each, path, rate=RATE, seconds=1.0)  # what is made once is made
            process, load = psutil.Process(gateway.process.pid), quiet()
            before, sent = process.cpu_times(), server.execute("XLEN", "flows:hello")
            ours, theirs = list[Load](), list[Load]()
            for _ in range(times):
                ours.append(await steady(gateway.url, path, rate=RATE, seconds=seconds))
                theirs.append(await steady(url, path, rate=RATE, seconds=seconds))
            after, stored = process.cpu_times(), server.execute("XLEN", "flows:hello") - sent
    latencies = [each for stretch in ours for each in stretch.latencies]
    count, accepted = len(latencies), sum(stretch.statuses[202] for stretch in ours)
    p99s = [quantile(stretch.latencies, 0.99) for stretch in ours]
    least = [quantile(stretch.latencies, 0.99) for stretch in theirs]
    p99 = quantile(latencies, 0.99)
    values: dict[str, Value] = {
        "p50 ms": quantile(latencies, 0.5),
        "p99 ms of each stretch": ", ".join(f"{each:.1f}" for each in p99s),
        "stolen %": ", ".join(f"{stretch.stolen:.1f}" for stretch in ours),
        "median of the stretches": quantile(p99s, 0.5),
        "max ms": max(latencies),
        "requests": count,
        "not 202": count - accepted,
        "not stored": count - stored,
        "CPU ms a request": (after.user + after.system - before.user - before.system) * 1000 / count,
    }
    others = [each for stretch in theirs for each in stretch.latencies]
    peer: dict[str, Value] = {
        "bare p50 ms": quantile(others, 0.5),
        "bare p99 ms of each stretch": ", ".join(f"{each:.1f}" for each in least),
        "stolen %": ", ".join(f"{stretch.stolen:.1f}" for stretch in theirs),
    }
    return [
        Row(f"202 at {RATE} requests/s, p99 ms", values, p99, f"<= {TARGET:g}", load=load),
        Row("the same, to an ASGI function that only XADDs", peer, p99 / quantile(others, 0.99), load=load),
    ]


@contextmanager
def bare(redis_url: str) -> Iterator[str]:
    """The least that a server could do, listening; its URL."""
    words = [sys.executable, "-m", "tests.benchmarks.bare_asgi", redis_url]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(30)
