"""A Valkey and a worker as a user would start them, for measuring from outside."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import redis
import redis.asyncio as redis_client

from runtime.broker.embedded import EmbeddedValkey
from tests.benchmarks.closed_loop import Loop, StreamWay
from tests.benchmarks.figures import Sample, cpu_of, family
from tests.support.harness import clean_environment

HEADRACE = Path(sys.executable).with_name("headrace")


@dataclass(frozen=True)
class Stack:
    """What runs."""

    url: str
    worker: int
    valkey: int

    @property
    def family(self) -> list[psutil.Process]:
        """The supervisor, its zygote and its children."""
        return family(self.worker)

    def connect(self) -> redis_client.Redis:
        """A client of the benchmark's own."""
        return redis_client.Redis.from_url(self.url, decode_responses=True, socket_timeout=90)

    async def measure(
        self, route: str, *, in_flight: int, seconds: float, payload: str = "What is 6 times 7?"
    ) -> Sample:
        """A closed loop over a route, for about ``seconds`` after a round to warm up, but at least one round.

        The CPU is that of the workers; beside it stand Valkey's, and the workers' round trips and commands.
        """
        client = self.connect()
        way = StreamWay(client, f"flows:{route}", payload)
        await way.catch_up()
        counts = Counts(self.url, way)
        workers, valkey = self.family, [psutil.Process(self.valkey)]
        marks: list[tuple[float, Counts.Mark]] = []

        def cpu() -> float:
            marks.append((cpu_of(valkey), counts.mark()))
            return cpu_of(workers)

        loop = Loop(way, cpu)
        try:
            warm = await loop.whole(in_flight=in_flight, events=max(5, in_flight))
            rounds = max(1, round(warm.rate * seconds / in_flight))
            sample = await loop.whole(in_flight=in_flight, events=rounds * in_flight)
        finally:
            await client.aclose()
            counts.close()
        (before, at), (after, then) = marks[2:]
        more = {"Valkey CPU ms": (after - before) / sample.events * 1000, **then.since(at, sample.events)}
        return Sample(sample.events, sample.wall, sample.cpu, sample.latencies, more)


class Counts:
    """How often the workers have sent something, and how many commands. Reads of a socket are counted by the server."""

    @dataclass(frozen=True)
    class Mark:
        """The counts at a moment, without this process's own: reads of clients' sockets, scripts, blocking reads."""

        reads: int
        scripts: int
        blocking: int

        def since(self, before: Counts.Mark, events: int) -> dict[str, float]:
            """Per event."""
            return {
                "round trips": (self.reads - before.reads) / events,
                "scripts": (self.scripts - before.scripts) / events,
                "blocking reads": (self.blocking - before.blocking) / events,
            }

    def __init__(self, url: str, way: StreamWay) -> None:
        self._client = redis.Redis.from_url(url, decode_responses=True)
        self._way = way
        self._own = 0

    def mark(self) -> Counts.Mark:
        """The counts now."""
        self._own += 2
        stats, commands = self._client.info("stats"), self._client.info("commandstats")
        scripts = commands.get("cmdstat_evalsha", {}).get("calls", 0)
        blocking = commands.get("cmdstat_xread", {}).get("calls", 0) - self._way.reads
        return Counts.Mark(int(stats["total_reads_processed"]) - self._own - self._way.sends, scripts, blocking)

    def close(self) -> None:
        """Let the connection go."""
        self._client.close()


@contextmanager
def valkey() -> Iterator[str]:
    """An embedded Valkey of its own; its URL."""
    with tempfile.TemporaryDirectory() as home:
        server = EmbeddedValkey.start(Path(home) / "data")
        try:
            yield server.url
        finally:
            server.stop()


@contextmanager
def stack(flows: Path, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[Stack]:
    """An embedded Valkey and one `headrace worker` on ``flows``, once it is ready."""
    with valkey() as url, worker(url, flows, *options, environment=environment) as pid:
        yield Stack(url, pid, server_pid(url))


@contextmanager
def worker(url: str, flows: Path, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """A `headrace worker` on a Redis, once it is ready; its process id."""
    words = [HEADRACE, "worker", "--flows", str(flows), "--redis-url", url, *options]
    with tempfile.TemporaryDirectory() as home, started(words, Path(home), "ready", environment) as process:
        yield process.pid


@contextmanager
def started(
    words: Sequence[str | Path], home: Path, sign: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A command, once it has written a line with ``sign`` to stdout; ended at the end."""
    with (home / "err.txt").open("w+") as err:
        process = subprocess.Popen(
            words,
            env=clean_environment(home, **(environment or {})),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
        try:
            assert process.stdout is not None
            if not any(sign in line for line in process.stdout):
                err.seek(0)
                raise RuntimeError(f"{words[0]} ended before it was ready: {err.read()[-2000:]}")
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=30)


def server_pid(url: str) -> int:
    """The process id of a Redis."""
    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])
