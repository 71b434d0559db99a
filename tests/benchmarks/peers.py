"""What Headrace is measured beside, each in a process of its own: the engine, ``lfx serve``, and a plain worker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import redis.asyncio as redis_client

from tests.benchmarks.closed_loop import HttpWay, Loop, StreamWay
from tests.benchmarks.figures import Sample, cpu_of, family
from tests.benchmarks.stack import started
from tests.support.harness import clean_environment
from tests.support.servers import free_port

KEY = "benchmark"
LFX = Path(sys.executable).with_name("lfx")
START = 120.0
"""Seconds that a server may take to start."""

DEPTH = 20
"""Events that wait at most where one runs at a time: more would not change what it does, only how long we wait."""

MANY = 1000
"""Events that are enough for a measurement."""


def environment(home: Path, model: Mapping[str, str]) -> dict[str, str]:
    """What Langflow needs to reach the stub model, and to leave the network and the home directory alone."""
    return clean_environment(
        home,
        **model,
        LANGFLOW_API_KEY=KEY,
        LANGFLOW_CONFIG_DIR=str(home),
        LANGFLOW_SSRF_ALLOWED_HOSTS="127.0.0.2",  # else a key from the environment is not sent there
        LANGFLOW_DEACTIVATE_TRACING="true",
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        DO_NOT_TRACK="true",
    )


RESTRICTED = {"LANGFLOW_ALLOW_CUSTOM_COMPONENTS": "false"}
"""Only installed components run, as where flows of others are served. ``lfx serve`` then loads all extensions."""


class Stock:
    """The engine called directly, with nothing around it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self, flow: str, *, in_flight: int, events: int, known_host: bool = False) -> Sample:
        """So many runs. ``known_host``: the look-up of a container's host is answered from memory."""
        task = {"flow": flow, "in_flight": in_flight, "events": events, "known_host": known_host}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        line = next(line for line in self._process.stdout if line.startswith('{"events"'))
        return Sample(**json.loads(line))


@contextmanager
def stock(flows: Path, home: Path, model: Mapping[str, str]) -> Iterator[Stock]:
    """The engine with the flows of a folder loaded."""
    words = [sys.executable, "-m", "tests.benchmarks.stock", "engine", str(flows)]
    with started(words, home, '"ready"', environment(home, model)) as process:
        yield Stock(process)


class Plain:
    """A worker that reads a stream and calls run_flow_from_json for each event."""

    def __init__(self, pid: int, url: str, stream: str) -> None:
        self._family = family(pid)
        self._url = url
        self._stream = stream

    async def measure(self, *, seconds: float) -> Sample:
        """A closed loop. What is outstanding at its end is left to run."""
        client = redis_client.Redis.from_url(self._url, decode_responses=True, socket_timeout=90)
        way = StreamWay(client, self._stream)
        await way.catch_up()
        try:
            loop = Loop(way, lambda: cpu_of(self._family))
            sample = await loop.window(in_flight=DEPTH, warm=2, events=MANY, seconds=seconds)
            await loop.drain()
            return sample
        finally:
            await client.aclose()


@contextmanager
def plain(url: str, file: Path, home: Path, model: Mapping[str, str]) -> Iterator[Plain]:
    """One on a stream named for the flow's file."""
    stream = f"plain:{file.stem}"
    words = [sys.executable, "-m", "tests.benchmarks.stock", "plain", url, str(file), stream]
    with started(words, home, '"ready"', environment(home, model)) as process:
        yield Plain(process.pid, url, stream)


class Served:
    """``lfx serve`` in one process."""

    def __init__(self, pid: int, url: str, seconds: float) -> None:
        self.family = family(pid)
        self.seconds = seconds
        """How long it took to become ready."""
        self._url = url
        self._flows = {flow["relative_path"].removesuffix(".json"): flow["id"] for flow in get(f"{url}/flows")}

    async def measure(
        self, flow: str, *, in_flight: int, seconds: float, hurry: Callable[[], None], events: int = MANY
    ) -> Sample:
        """A closed loop. Then ``hurry`` is called, and what is outstanding ends."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            way = HttpWay(session, f"{self._url}/flows/{self._flows[flow]}/run", KEY)
            loop = Loop(way, lambda: cpu_of(self.family))
            try:
                depth = min(in_flight, DEPTH)
                sample = await loop.window(in_flight=depth, warm=2, events=events, seconds=seconds)
                hurry()
                await loop.drain()
                return sample
            finally:
                await way.close()


@contextmanager
def lfx_serve(flows: Path, home: Path, model: Mapping[str, str]) -> Iterator[Served]:
    """A server on the flow files of a folder, once it answers."""
    port, began = free_port(), time.perf_counter()
    url = f"http://127.0.0.1:{port}"
    with (home / "serve.txt").open("w") as log:
        process = subprocess.Popen(
            [LFX, "serve", str(flows), "--port", str(port)],
            env=environment(home, model),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            while not _healthy(url):
                if process.poll() is not None or time.perf_counter() - began > START:
                    raise RuntimeError(f"lfx serve did not start: {(home / 'serve.txt').read_text()[-2000:]}")
                time.sleep(0.02)
            yield Served(process.pid, url, time.perf_counter() - began)
        finally:
            process.kill()  # it would finish what is outstanding first
            process.wait(30)


def get(url: str) -> list[dict[str, str]]:
    """What ``lfx serve`` answers to a GET."""
    request = urllib.request.Request(url, headers={"x-api-key": KEY})
    with urllib.request.urlopen(request, timeout=10) as response:
        found: list[dict[str, str]] = json.loads(response.read())
        return found


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False
