"""A child process: one event loop that runs events, under a name and a lease that the supervisor keeps for it."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from runtime.archive.archive import Archive
from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.engine.base import FlowSource, LoadedFlow
from runtime.registry.registry import Registry
from runtime.settings import Settings
from runtime.telemetry.resident import resident
from runtime.worker.board import Board, Slot
from runtime.worker.channel import Channel, Message
from runtime.worker.identity import Identity, ReadyReport, Resources
from runtime.worker.lanes import Lanes
from runtime.worker.limiter import Limiter
from runtime.worker.loop import PeriodicLoop
from runtime.worker.loop_clock import LoopClock
from runtime.worker.punctual import Punctual
from runtime.worker.sweeper import Condemned
from runtime.worker.watchdog import Watchdog
from runtime.worker.zygote import ChildSpec

log = structlog.get_logger("headrace.worker")

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_ORPHANED = 3
"""The supervisor is gone."""

CRASHES = 3
"""Deliveries in a row that may end with an error of ours before the process is replaced: a fresh one may be sound."""

BEAT = 0.5
"""Seconds between two signs that the loop turns."""


@dataclass(frozen=True, slots=True)
class ChildContext:
    """What every child of a worker shares with the zygote that forks it."""

    settings: Settings
    redis_url: str
    registry: Registry
    """As the zygote has it: with the last good version of a file that is broken now."""
    only: frozenset[str]
    engine: Punctual
    preloaded: Mapping[str, tuple[FlowSource, LoadedFlow]]
    board: Board
    supervisor: int
    """Its pid."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the supervisor tells: to end, to end at once, to dead-letter what killed its workers, where to look."""

    drain: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    condemned: Condemned = field(default_factory=deque)
    news: list[Callable[[RouteKeys], None]] = field(default_factory=list)
    """Called where a route has something to fetch."""
    folder: asyncio.Event = field(default_factory=asyncio.Event)
    """The flows folder has changed."""

    async def stirrings(self) -> AsyncGenerator[None, None]:
        """Something at first, since the folder may have changed while this began, and whenever it has changed."""
        self.folder.set()
        while True:
            await self.folder.wait()
            self.folder.clear()
            yield


def main(spec: ChildSpec, sock: socket.socket, context: ChildContext) -> int:
    """Run a child to its end, right after the fork; its exit code."""
    random.seed()
    gc.freeze()
    clock = LoopClock()
    # Not closed: that would wait for runs that swallow their cancellation, for ever. The process ends right after this.
    code = asyncio.Runner(loop_factory=clock.new_loop).run(_run(spec, sock, context, clock))
    if code == EXIT_OK:
        context.board.slot(spec.slot).leave()
    return code


async def _run(spec: ChildSpec, sock: socket.socket, context: ChildContext, clock: LoopClock) -> int:
    slot = context.board.slot(spec.slot)
    told = Told()

    async def hear(message: Message) -> None:
        if "drain" in message:
            told.drain.set()
        if "hurry" in message:
            told.hurry.set()
        if "folder" in message:
            told.folder.set()
        if "look" in message:
            for look in told.news:
                look(RouteKeys(*message["look"]))
        if "condemn" in message:
            stream, group, entries = message["condemn"]
            told.condemned.append((RouteKeys(stream, group), entries))

    channel = Channel(sock, hear)
    await channel.open()
    with Watchdog(asyncio.get_running_loop(), slot, clock, supervisor=context.supervisor) as watchdog:
        helpers = [
            asyncio.create_task(_beat(slot), name="child:beat"),
            asyncio.create_task(_orphaned(channel, told), name="child:orphaned"),
        ]
        try:
            code = await _serve(spec, context, channel, told, clock)
        finally:
            watchdog.stop()
            for helper in helpers:
                helper.cancel()
            orphaned = channel.closed.is_set()
            await channel.close()
    return EXIT_ORPHANED if orphaned and code == EXIT_OK else code


async def _serve(spec: ChildSpec, context: ChildContext, channel: Channel, told: Told, clock: LoopClock) -> int:
    settings = context.settings
    engine = context.engine.telling(lambda step: channel.tell({"step": step}))
    route = spec.exclusive or (spec.alone[0] if spec.alone else None)
    await engine.prepare(concurrency=settings.worker.concurrency)

    async def next_alone() -> str:
        return str((await channel.ask({"next": True})).get("entry", ""))

    broker = Broker.connect(context.redis_url, settings.redis, settings.retention)
    resources = Resources(
        settings=settings,
        engine=engine,
        registry=context.registry,
        broker=broker,
        only=context.only if route is None else frozenset({route}),
        leaves_exclusive=route is None,
        lanes=Lanes(),
        limiter=Limiter(settings.worker.concurrency if route is None else 1),
        drain=told.drain,
        hurry=told.hurry,
        preloaded=context.preloaded,
        slot=context.board.slot(spec.slot),
        clock=clock,
        condemned=told.condemned,
        stirrings=told.stirrings,
        on_news=told.news.append,
        archive=Archive.open(settings.archive),
        tell=channel.tell,
        alone=spec.alone,
        next_alone=next_alone,
    )
    identity = Identity(resources, name=spec.name, lease=SupervisedLease(channel))
    recycler = Recycler(resources, channel)
    recycling = asyncio.create_task(recycler.run(), name="child:recycler")
    try:
        drained = await identity.run(lambda report: channel.tell({"reading": _message(report)}))
    except Exception:
        log.exception("worker.failed", worker=spec.name)
        return EXIT_FAILED
    finally:
        recycling.cancel()
        await broker.close()
        await engine.close()
    return EXIT_OK if drained else EXIT_FAILED


def _message(report: ReadyReport) -> Message:
    return {
        "worker": report.worker,
        "pid": os.getpid(),
        "ready": list(report.ready),
        "unready": {name: list(needs) for name, needs in report.unready.items()},
        "problems": [f"{p.path}: {p.message}" for p in report.problems],
    }


class SupervisedLease:
    """The lease as the supervisor keeps it: this side asks, and hears when it is lost by being killed."""

    def __init__(self, channel: Channel) -> None:
        self.lost = asyncio.Event()
        self._channel = channel

    def start(self) -> None:
        """The supervisor renews from the first ``watch`` on."""

    async def watch(self, keys: Sequence[RouteKeys]) -> bool:
        """Have these renewed from now on. True when Redis has registered all of them."""
        answer = await self._channel.ask({"watch": [[k.stream, k.group] for k in keys]})
        return bool(answer.get("ok"))

    async def renew_now(self) -> bool:
        """Have one renewal out of turn."""
        return bool((await self._channel.ask({"renew": True})).get("ok"))

    async def close(self) -> None:
        """Have no more renewals."""
        await self._channel.ask({"watch": []})


class Recycler(PeriodicLoop):
    """Ends this process, without losing an event, when it has run enough or has grown too large."""

    name = "recycler"

    def __init__(self, resources: Resources, channel: Channel) -> None:
        super().__init__(1.0)
        self._with = resources
        self._channel = channel
        self._base = resident()

    async def tick(self) -> None:
        """Look once."""
        settings, ended = self._with.settings.worker, self._with.limiter.ended
        reason = None
        if settings.max_runs is not None and ended >= settings.max_runs:
            reason = f"it has run {ended} events"
        elif self._with.limiter.jammed:
            reason = f"{self._with.limiter.stuck} of its runs do not end, though they were cancelled"
        elif self._with.limiter.crashed >= CRASHES:
            reason = f"{self._with.limiter.crashed} deliveries in a row have crashed; a component may have broken it"
        elif settings.max_memory is not None and (grown := resident() - self._base) >= settings.max_memory:
            # Not its size: what it shares with the zygote is there from the first moment, and no end frees it.
            reason = f"it has grown by {grown // 1_000_000} MB"
        if reason is not None and not self._with.drain.is_set():
            log.info("worker.recycled", reason=reason)
            self._with.drain.set()
            self._channel.tell({"recycling": reason})


async def _beat(slot: Slot) -> None:
    while True:
        slot.beat()
        await asyncio.sleep(BEAT)


async def _orphaned(channel: Channel, told: Told) -> None:
    """Without a supervisor nobody renews the lease: give everything back while it still holds."""
    await channel.closed.wait()
    log.error("supervisor.gone")
    told.hurry.set()
    told.drain.set()
