"""One run: a world, a producer, a schedule of faults, a quiet time, a verdict."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from tests.chaos.events import Producer, plan
from tests.chaos.faults import Faults
from tests.chaos.judge import Judge, at_rest, gates_at_rest
from tests.chaos.pods import boot
from tests.chaos.world import World
from tests.support.servers import redis_binary, valkey_binary

STORIES = 5
"""Stories that are told in full."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is asked to be."""

    seed: int
    seconds: float = 60.0
    events: int = 5000
    engine: str = "ledger"
    server: str = "valkey"
    workers: int = 3
    every: float = 1.5
    """Seconds between faults, on average."""
    quiet: float = 60.0
    """Seconds until everything that was sent must have ended."""
    only: Sequence[str] = ()
    """Kinds of faults; empty: all."""
    keep: bool = False
    """Whether to keep the folder in any case."""


@dataclass
class Report:
    """What came of it."""

    figures: dict[str, Any]
    broken: list[str]
    stories: list[str] = field(default_factory=list)
    folder: Path | None = None


async def run(asked: Plan, say: Callable[[str], None] = lambda _: None) -> Report:
    """One run to its verdict."""
    binary = valkey_binary() if asked.server == "valkey" else redis_binary()
    began = boot()
    world = World(
        binary, engine=asked.engine, workers=asked.workers, say=lambda text: say(f"{boot() - began:7.2f} {text}")
    )
    broken = True
    try:
        await world.open()
        report = await _run(asked, world)
        broken = bool(report.broken)
        report.figures["seconds"] = round(boot() - began, 1)
        report.folder = world.folder if broken or asked.keep else None
        return report
    finally:
        await world.close(keep=broken or asked.keep)


async def _run(asked: Plan, world: World) -> Report:
    events = plan(asked.seed, asked.events, minutes=asked.seconds / 60)
    world.producer = Producer(
        world.server.url, events, seconds=asked.seconds * 0.95, ledger=str(world.folder / "ledger"), seed=asked.seed
    )
    faults = Faults(world, asked.seed)
    if asked.only:
        faults.kinds = {kind: how for kind, how in faults.kinds.items() if kind in asked.only}
    watching = asyncio.create_task(_watch(world), name="chaos:watch")
    noting = asyncio.create_task(world.note_leases(), name="chaos:leases")
    producing = asyncio.create_task(world.producer.run(), name="chaos:producer")
    try:
        await faults.run(asked.seconds, every=asked.every)
        world.say("no more faults")
        await asyncio.wait_for(producing, 60)
        left = await _quiet(world, asked.quiet)
        world.say("quiet")
        watching.cancel()
        left += await _end(world)
    finally:
        for task in (watching, noting, producing):
            task.cancel()
        await asyncio.gather(watching, noting, producing, return_exceptions=True)
        await world.producer.close()
    await asyncio.to_thread(world.harvest, flush=False)
    return await asyncio.to_thread(_judged, world, faults, left)


def _judged(world: World, faults: Faults, left: list[str]) -> Report:
    assert world.producer is not None
    judge = Judge(world, world.producer.tried.values())
    verdict = judge.judge()
    left += gates_at_rest(world)
    figures = {
        **verdict.figures,
        "sent again": world.producer.resent,
        "epochs": len(world.epochs),
        "faults": sum(faults.count.values()),
        **{f"  {kind}": count for kind, count in sorted(faults.count.items())},
    }
    broken = [*world.problems, *left, *(f"{event}: {what}" for event, what in verdict.broken)]
    guilty = list(dict.fromkeys(event for event, _ in verdict.broken if event))
    return Report(figures, broken, [judge.story(event) for event in guilty[:STORIES]])


async def _watch(world: World) -> None:
    while True:
        world.watch()
        await asyncio.sleep(0.2)


async def _quiet(world: World, seconds: float) -> list[str]:
    """Wait until nothing is left to do; what is left in spite of that."""
    for seat in world.seats:
        seat.proxy.heal()
    deadline, left = boot() + seconds, ["nothing could be asked"]
    while boot() < deadline:
        with suppress(redis.RedisError, OSError):
            if not (left := await asyncio.to_thread(at_rest, world)):
                return []
        await asyncio.sleep(0.5)
    return left


async def _end(world: World) -> list[str]:
    """SIGTERM for all: each ends with 0 and leaves no consumer."""
    pods = [seat.pod for seat in world.seats]
    for pod in pods:  # a process that was started a moment ago knows no signals yet
        await world.until(lambda pod=pod: pod.reading or pod.code is not None, 30, f"{pod.name} reads")
        pod.asked_to_end = True
        pod.signal(signal.SIGTERM)
    for pod in pods:
        await world.until(lambda pod=pod: pod.code is not None, 30, f"{pod.name} ended")
    return [f"{pod.name} ended with code {pod.code}" for pod in pods if pod.code != 0]
