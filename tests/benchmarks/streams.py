"""Streams of run events: a thousand open at once in one gateway, and clients that break off again and again."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from shared_models.result import RunEventType
from tests.benchmarks.figures import Row, quantile, quiet
from tests.support.followers import asking, hands, sent, storm
from tests.support.gateway import GatewayProcess, gateway_process
from tests.support.servers import RedisServer, valkey_binary

STREAMS = 1000
LINES = 5
"""Lines that each stream is told, one after the other."""


class Follower:
    """One open stream, and when each of its lines came."""

    def __init__(self, event: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.event = event
        self.came: dict[int, float] = {}
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, gateway: GatewayProcess, event: str) -> Follower:
        """Ask, and wait for the first event."""
        parts = urlsplit(gateway.url)
        made = cls(event, *await asyncio.open_connection(parts.hostname, parts.port))
        made._writer.write(f"GET /v1/runs/{event}/events HTTP/1.1\r\nhost: {parts.netloc}\r\n\r\n".encode())
        await made._reader.readuntil(b"event: queued\n")
        return made

    async def read(self) -> None:
        """To the end."""
        try:
            while (line := await self._reader.readline()) and line != b"event: end\n":
                if line.startswith(b'data: {"n":'):
                    self.came[int(line[11:].partition(b",")[0])] = time.perf_counter()
        finally:
            self._writer.close()


async def measure(*, quick: bool = False) -> list[Row]:
    """Both figures."""
    rows = []
    with (
        tempfile.TemporaryDirectory() as home,
        RedisServer(valkey_binary()) as server,
        gateway_process(server.url, Path(home)) as gateway,
    ):
        rows.append(await opened(server, gateway, 50 if quick else STREAMS))
        runs, lines = (5, 50) if quick else (100, 99)
        load, began = quiet(), time.perf_counter()
        # It fails where a line is lost, repeated or out of order: it sees each stream to its end.
        breaks, told = await storm(server.url, gateway, runs=runs, lines=lines)
        values = {"lines": told, "reconnects": breaks, "s": time.perf_counter() - began}
        lost = runs * (lines + 1) - told
        rows.append(Row("lines lost or repeated over reconnects", values, lost, "<= 0", load=load))
    return rows


async def opened(server: RedisServer, gateway: GatewayProcess, count: int) -> Row:
    """What open streams take, and how late their lines come."""
    process, load = psutil.Process(gateway.process.pid), quiet()
    async with hands(server.url) as worker, asking(gateway) as http:
        made = [await sent(http, "a", n=n) for n in range(count)]
        memory, clients = process.memory_info().rss, server.execute("INFO", "clients")["connected_clients"]
        began = time.perf_counter()
        followers = [await Follower.open(gateway, event) for event in made]
        took = time.perf_counter() - began
        reading = [asyncio.create_task(one.read()) for one in followers]
        grown = process.memory_info().rss - memory
        lines, told = server.execute("INFO", "clients")["connected_clients"] - clients, dict[tuple[str, int], float]()
        before, since = process.cpu_times(), time.perf_counter()
        for n in range(LINES):
            for event in made:
                told[event, n] = time.perf_counter()
                await worker.tell(event, [(RunEventType.COMPONENT_ENDED, n)])
        for event in made:
            await worker.end(event)
        await asyncio.wait_for(asyncio.gather(*reading), 120)
    after, wall = process.cpu_times(), time.perf_counter() - since
    late = [(one.came[n] - told[one.event, n]) * 1000 for one in followers for n in range(LINES)]
    values = {
        "streams": count,
        "opened in s": took,
        "kB a stream": grown / count / 1000,
        "connections to Redis": lines,
        "line p50 ms": quantile(late, 0.5),
        "line p99 ms": quantile(late, 0.99),
        "lines a second": count * LINES / wall,
        "CPU ms a line": (after.user + after.system - before.user - before.system) * 1000 / (count * (LINES + 2)),
    }
    missing = count - sum(len(one.came) == LINES + 1 for one in followers)
    return Row("streams of which a line is missing", values, missing, "<= 0", load=load)
