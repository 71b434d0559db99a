"""How soon the entries of processes that die run again, and what restarts leave. Default settings, echo engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.broker.embedded import EmbeddedValkey
from runtime.broker.keys import RouteKeys
from shared_models.codec import new_event_id
from tests.benchmarks.figures import Row, quantile
from tests.support.harness import Client, client, write_flow
from tests.support.nursery import Nursery, nursery

CHILDREN = 50
WORKERS = 50
AT_ONCE = 25
"""Workers that die in one round, one after the other."""

APART = 0.4
"""Seconds between two of their deaths."""

RESTARTS = 200
STARTING = 4
"""Restarts at once."""

STARTERS, STALE = 8, 10_000


def boot() -> float:
    """The clock that the ledger is stamped with."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Ledger:
    """What was executed, as the runs wrote it; read on as it grows."""

    path: Path
    starts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    _read: int = 0

    async def until(self, done: Callable[[], Any], timeout: float = 60.0) -> Any:
        """What ``done`` says once it is true."""
        async with asyncio.timeout(timeout):
            while not (found := self._look() or done()):
                await asyncio.sleep(0.01)
        return found

    async def start(self, event: str, number: int = 1) -> dict[str, Any]:
        """The so-many-th execution of an event, once it has begun."""
        found: list[dict[str, Any]] = await self.until(
            lambda: self.starts[event] if len(self.starts.get(event, ())) >= number else None
        )
        return found[number - 1]

    def _look(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                self._read += len(raw)
                line = json.loads(raw)
                if line["what"] == "start":
                    self.starts.setdefault(line["event"], []).append(line)
                elif line["what"] == "end":
                    self.ends[line["event"]] += 1


@dataclass(frozen=True)
class Scene:
    """A Valkey, a folder of flows, a way to start workers."""

    client: Client
    folder: Path
    workers: Nursery
    ledger: Ledger

    async def starts_reading(self, pid: int) -> None:
        """Wait until a worker's processes read."""
        log = self.folder / f"worker-{pid}.log"
        await self.ledger.until(lambda: log.exists() and "child.reading" in log.read_text())

    async def held(self, route: str, until: str = "") -> str:
        """Send an event whose runs wait until it, or what is named, is let go; its id."""
        event = new_event_id()
        path = self.folder / f"let-go-{until or event}"
        return await self.client.send(f"flows:{route}", {"input_value": "x", "until": str(path)}, event_id=event)

    def let_go(self, what: str) -> None:
        """Let runs end that wait for it."""
        (self.folder / f"let-go-{what}").touch()

    async def takes_one(self, pid: int) -> None:
        """Wait until one of a worker's processes runs an event."""
        log = self.folder / f"worker-{pid}.log"

        def runs() -> bool:
            told = log.read_text().splitlines(keepends=True) if log.exists() else []
            lines = [json.loads(line) for line in told if "child.reading" in line and line.endswith("\n")]
            pids = {line["pid"] for line in lines}
            return any(line["pid"] in pids for starts in self.ledger.starts.values() for line in starts)

        await self.ledger.until(runs)


@asynccontextmanager
async def scene(*routes: str) -> AsyncIterator[Scene]:
    """All of it, ended at the end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for route in routes:
            write_flow(folder / "flows", route)
        valkey = EmbeddedValkey.start(folder / "data")
        try:
            async with client(valkey.url) as made, nursery(valkey.url, folder) as workers:
                yield Scene(made, folder, workers, Ledger(folder / "ledger"))
        finally:
            await asyncio.to_thread(valkey.stop)


async def measure(*, quick: bool = False) -> list[Row]:
    """All four, one after the other; ``quick``: a tenth of the deaths and restarts."""
    part = 10 if quick else 1
    return [
        _told("child killed, to the next run", await deaths_of_children(CHILDREN // part)),
        _told("worker killed, to the next run", await deaths_of_workers(WORKERS // part, AT_ONCE)),
        Row("restarts", await restarts(RESTARTS // part)),
        Row("stale entries", await stale_entries(STARTERS, STALE // part)),
    ]


def _told(name: str, seconds: list[float]) -> Row:
    return Row(
        name,
        {
            "times": len(seconds),
            "p50 s": quantile(seconds, 0.5),
            "p99 s": quantile(seconds, 0.99),
            "worst s": max(seconds),
        },
    )


async def deaths_of_children(times: int, **worker: Any) -> list[float]:
    """Seconds from the SIGKILL of a child to the next execution of what it ran, in a worker of two processes."""
    taken = []
    async with scene("echo") as on:
        pid = await on.workers.start(processes=2, **worker)
        await on.starts_reading(pid)
        for _ in range(times):
            event = await on.client.send("flows:echo", {"input_value": "x", "sleep": 0.3})
            line = await on.ledger.start(event)
            killed = boot()
            os.kill(line["pid"], signal.SIGKILL)
            taken.append((await on.ledger.start(event, 2))["at"] - killed)
            await on.client.run(RouteKeys("flows:echo", "headrace"), event)
    return taken


async def deaths_of_workers(times: int, at_once: int, **worker: Any) -> list[float]:
    """Seconds from the SIGKILL of a whole worker to the next execution of what it ran, by another that stands by."""
    taken: list[float] = []
    for first in range(0, times, at_once):
        routes = [f"r{number}" for number in range(first, min(times, first + at_once))]
        async with scene(*routes) as on:
            taken += await _die(on, routes, worker)
    return taken


async def _die(on: Scene, routes: list[str], worker: dict[str, Any]) -> list[float]:
    dying = {route: await on.workers.start(only=route, **worker) for route in routes}
    events = {route: await on.held(route) for route in routes}
    for event in events.values():
        await on.ledger.start(event)
    standby = await on.workers.start(concurrency=100, **worker)
    await on.starts_reading(standby)
    killed = {}
    for route in routes:
        killed[route] = boot()
        on.workers.kill(dying[route])
        on.let_go(events[route])
        await asyncio.sleep(APART)
    return [(await on.ledger.start(events[route], 2))["at"] - killed[route] for route in routes]


async def restarts(times: int, *, at_once: int = STARTING, **worker: Any) -> dict[str, float | int]:
    """Consumers of the group after so many restarts: each takes an event, and with it in hand is killed or hurried out.

    One worker stays: it runs one long event all the while, and only tidies up.
    """
    async with scene("echo") as on:
        await on.workers.start(concurrency=1, **worker)
        busy = await on.held("echo", "never")
        await on.ledger.start(busy)
        free = asyncio.Semaphore(at_once)

        async def restart(number: int) -> str:
            async with free:
                pid = await on.workers.start(concurrency=1, **worker)
                event = await on.held("echo", "all")
                await on.takes_one(pid)
                if number % 2:
                    on.workers.kill(pid)
                else:
                    for stop in (signal.SIGTERM, signal.SIGINT):  # two of one kind may arrive as one
                        os.kill(pid, stop)
                await on.workers.ended(pid)
                return event

        events = await asyncio.gather(*(restart(number) for number in range(times)))
        began = boot()
        # Those that held them are gone, and the one that stays is busy: one more runs what they left.
        on.let_go("all")
        await on.workers.start(**worker)
        await on.ledger.until(lambda: all(on.ledger.ends[event] for event in events), timeout=120)
        lease = worker.get("lease", 15.0)
        return {
            "restarts": times,
            "restarts_live_workers": 2,
            "restarts_consumers_left": await _settled_consumers(on, patience=2 * lease + 10),
            "restarts_all_tidy_s": boot() - began,
            "restarts_events_done": sum(on.ledger.ends[event] for event in events),
        }


async def _settled_consumers(on: Scene, *, patience: float) -> int:
    """How many there are when no more go: two that live and what is parked, or whatever is left at the end."""
    until = boot() + patience
    while True:
        left = len(await on.client.redis.xinfo_consumers("flows:echo", "headrace"))
        if left <= 3 or boot() > until:
            return left
        await asyncio.sleep(0.1)


async def stale_entries(workers: int, entries: int, **worker: Any) -> dict[str, float | int]:
    """Executions of what a dead consumer holds, when so many workers start at once on it."""
    async with scene("echo") as on:
        keys, redis = RouteKeys("flows:echo", "headrace"), on.client.redis
        await on.client.broker.streams.ensure_group(keys)
        events = [new_event_id() for _ in range(entries)]
        async with redis.pipeline(transaction=False) as pipe:
            for event in events:
                pipe.xadd(keys.stream, {"event_id": event, "payload": '{"input_value": "x"}'})
            await pipe.execute()
        await on.client.broker.leases.renew([keys], worker="dead", ttl=0.001)
        await redis.xreadgroup(keys.group, "dead", {keys.stream: ">"}, count=entries)
        began = boot()
        for _ in range(workers):
            await on.workers.start(**worker)
        await on.ledger.until(lambda: len(on.ledger.ends) >= entries, timeout=300)
        done = boot()
        counts = Counter(len(lines) for lines in on.ledger.starts.values())
        return {
            "stale_entries": entries,
            "stale_workers_at_once": workers,
            "stale_executed_once": counts[1],
            "stale_executed_again": sum(counts.values()) - counts[1],
            "stale_all_done_s": done - began,
        }
