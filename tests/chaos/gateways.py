"""A gateway that is killed between taking an event and answering, and clients that try again until they are answered.

``python -m tests.chaos.gateways [--rounds 1000] [--seed 1]``. In each round some clients send an event each, with a
key, and the gateway is killed: as soon as the first of them is in the stream, or at a random moment. The next one takes
its place at once, on the same listening socket. In the end each event stands in the stream exactly once, under the id
that its client was told.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.gateway import route_entry
from tests.support.harness import client
from tests.support.servers import RedisServer, valkey_binary

CLIENTS = 4
"""Events in each round."""

LATEST = 0.03
"""Seconds after the requests within which the gateway is killed at random: about as long as answering them takes."""

ON_SIGHT = 0.7
"""How often it is killed when the first event of the round is in the stream, before or while that is answered."""

STREAM = "flows:hello"


@dataclass
class Report:
    """``repeats``: events whose first answer was lost although they were in the stream."""

    rounds: int = 0
    events: int = 0
    tries: int = 0
    repeats: int = 0
    broken: list[str] = field(default_factory=list)


async def run(redis_url: str, *, rounds: int, seed: int) -> Report:
    """So many rounds on an empty Redis."""
    report, chance = Report(), random.Random(seed)
    answered: dict[str, set[str]] = {}
    async with client(redis_url) as c, gateways(redis_url) as (url, pids):
        await c.broker.fleet.register([route_entry("hello")])
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as http:
            pid = await pids.get()
            for number in range(rounds):
                keys = [f"{seed}-{number}-{one}" for one in range(CLIENTS)]
                newest = await c.redis.xrevrange(STREAM, count=1)
                sends = [asyncio.create_task(_send(http, key, answered, report)) for key in keys]
                if chance.random() < ON_SIGHT:
                    await c.redis.xread({STREAM: newest[0][0] if newest else "0"}, block=10_000)
                else:
                    await asyncio.sleep(chance.uniform(0, LATEST))
                os.kill(pid, signal.SIGKILL)
                pid = await pids.get()
                await asyncio.gather(*sends)
                report.rounds += 1
        entries = await c.redis.xrange(STREAM)
    report.events = len(answered)
    stored = Counter(fields["event_id"] for _, fields in entries)
    report.broken += [f"{key} was told {len(ids)} ids" for key, ids in answered.items() if len(ids) != 1]
    report.broken += [f"{event_id} stands {count} times" for event_id, count in stored.items() if count != 1]
    told = {event_id for ids in answered.values() for event_id in ids}
    report.broken += [f"{event_id} was told and is not there" for event_id in told - set(stored)]
    report.broken += [f"{event_id} is there and nobody was told" for event_id in set(stored) - told]
    return report


async def _send(http: httpx.AsyncClient, key: str, answered: dict[str, set[str]], report: Report) -> None:
    while True:
        report.tries += 1
        try:
            done = await http.post(
                "/v1/routes/hello/events", json={"input_value": key}, headers={"idempotency-key": key}
            )
        except httpx.TransportError:
            continue
        assert done.status_code == 202, done.text
        told = done.json()
        report.repeats += told["duplicate"]
        answered.setdefault(key, set()).add(told["event_id"])
        return


@asynccontextmanager
async def gateways(redis_url: str) -> AsyncIterator[tuple[str, asyncio.Queue[int]]]:
    """Where they listen, and the pid of each as it begins to serve."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.chaos.gateways", "--serve", redis_url, stdout=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    url = (await process.stdout.readline()).decode().strip()
    pids: asyncio.Queue[int] = asyncio.Queue()

    async def read(lines: asyncio.StreamReader) -> None:
        async for line in lines:
            pids.put_nowait(int(line))

    reading = asyncio.create_task(read(process.stdout))
    try:
        yield url, pids
    finally:
        process.stdin.close()
        process.terminate()
        await process.wait()
        await reading


def serve(redis_url: str) -> None:
    """Fork a gateway, and another whenever one has ended, until SIGTERM. The imports are made once."""
    from runtime.gateway.server import listen
    from runtime.gateway.server import serve as serve_one
    from runtime.settings import LogSettings, Settings
    from runtime.telemetry import logs

    logs.configure(LogSettings(level="error"))
    listening = listen("127.0.0.1", 0)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    child = 0

    def end(*_: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        child = os.fork()
        if child == 0:
            _end_with(os.getppid())
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os._exit(serve_one(Settings(), redis_url=redis_url, listening=listening, on_ready=_tell_who))
        os.waitpid(child, 0)


def _tell_who() -> None:
    print(os.getpid(), flush=True)


def _end_with(parent: int) -> None:
    from runtime.cli.parent import end_with

    end_with(parent)


def main() -> int:
    """Run the rounds, print the figures; 1 if anything was broken."""
    words = argparse.ArgumentParser(prog="python -m tests.chaos.gateways", description=__doc__)
    words.add_argument("--rounds", type=int, default=1000)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    asked = words.parse_args()
    if asked.serve:
        serve(asked.serve)
        return 0
    with RedisServer(valkey_binary()) as server:
        report = asyncio.run(run(server.url, rounds=asked.rounds, seed=asked.seed))
    for name in ("rounds", "events", "tries", "repeats"):
        print(f"{name:10} {getattr(report, name)}")
    for what in report.broken:
        print(f"BROKEN {what}")
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
