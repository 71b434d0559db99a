"""The worker under one name, from its first renewal to its last write.

An identity that Redis has declared dead is never revived: what it ran is dropped, writes nothing, and the process goes
on under a new name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from runtime.archive.archive import Archive
from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.engine.base import Engine, FlowSource, LoadedFlow
from runtime.registry.registry import Registry
from runtime.registry.snapshot import Problem, Route, Snapshot
from runtime.registry.watch import watch
from runtime.settings import Settings
from runtime.worker import deadlines
from runtime.worker.board import Slot
from runtime.worker.consumer import Consumer
from runtime.worker.deliverer import Deliverer
from runtime.worker.flights import Abort, Flights
from runtime.worker.janitor import Janitor
from runtime.worker.lanes import Lanes
from runtime.worker.lease import Lease
from runtime.worker.limiter import Limiter
from runtime.worker.lookout import Lookout
from runtime.worker.loop import PeriodicLoop
from runtime.worker.loop_clock import LoopClock
from runtime.worker.processor import Processor
from runtime.worker.reporter import Reporter
from runtime.worker.route_book import RouteBook
from runtime.worker.sweeper import Condemned, Sweeper
from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")

RETRY_UNREADY = 15.0
"""Seconds between tries to load what could not be loaded."""


async def _none() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Resources:
    """What outlives an identity: the process's configuration, its engine, the flows it has loaded, its slots."""

    settings: Settings
    engine: Engine
    registry: Registry
    broker: Broker
    only: frozenset[str]
    lanes: Lanes
    limiter: Limiter
    drain: asyncio.Event
    hurry: asyncio.Event
    archive: Archive | None = None
    """Where large payloads and files are."""
    preloaded: Mapping[str, tuple[FlowSource, LoadedFlow]] = field(default_factory=dict)
    """Flows that a zygote has loaded, by route."""
    slot: Slot | None = None
    """Where this process shows that it lives, if anybody looks."""
    clock: LoopClock = field(default_factory=LoopClock)
    """How long the event loop was held up, and by whose run."""
    tell: Callable[[dict[str, Any]], None] = lambda _: None
    """Tells the supervisor something, if there is one."""
    leaves_exclusive: bool = False
    """Routes that want a process of their own are another's."""
    stirrings: Callable[[], AsyncGenerator[None, None]] | None = None
    """When to look at the flows folder, where another process watches it; else it is watched here."""
    on_news: Callable[[Callable[[RouteKeys], None]], None] = lambda _: None
    """Takes what is to be called where the supervisor knows that a route has something to fetch."""
    condemned: Condemned = field(default_factory=deque)
    """What the supervisor wants dead-lettered: entries that killed one process after the other."""
    alone: tuple[str, str] | None = None
    """The route and entry id that this process is for, if it is for entries that run alone, one after the other."""
    next_alone: Callable[[], Awaitable[str]] = _none
    """Asks the supervisor for the next entry to run alone; an empty answer: none."""


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """What runs once the worker reads: routes that are ready, those that are not and why, files that are no routes."""

    worker: str
    ready: tuple[str, ...]
    unready: dict[str, tuple[str, ...]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


OnReady = Callable[[ReadyReport], None]


def new_name() -> str:
    """A consumer name that no other process ever has: reused, it would keep a dead worker's entries alive."""
    return f"{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}"


class _Upkeep(PeriodicLoop):
    name = "upkeep"

    def __init__(self, book: RouteBook, lease: Lease) -> None:
        super().__init__(RETRY_UNREADY)
        self._book = book
        self._lease = lease

    async def tick(self) -> None:
        await self._book.retry_unready()
        await self._book.listen_again(self._lease)
        await self._book.part(self._lease)


class Identity:
    """One name, its lease, its roles."""

    def __init__(self, resources: Resources, *, name: str, lease: Lease) -> None:
        self.name = name
        self._with = resources
        self._lease = lease
        self._flights = Flights()
        broker, settings, lanes, limiter = resources.broker, resources.settings, resources.lanes, resources.limiter
        engine = Deliverer(resources.engine, settings.callbacks)
        processor = Processor(
            broker,
            engine,
            self._lease,
            settings,
            worker=self.name,
            clock=resources.clock,
            archive=resources.archive,
            alone=resources.alone is not None,
            ask_alone=self._ask_alone if resources.slot is not None else None,
        )
        self._consumer = Consumer(
            broker,
            lanes=lanes,
            limiter=limiter,
            flights=self._flights,
            processor=processor,
            lease=self._lease,
            settings=settings,
            worker=self.name,
            slot=resources.slot,
        )
        self._book = RouteBook(
            broker,
            engine,
            lanes,
            takes=self._takes,
            changed=self._consumer.kick,
            preloaded=resources.preloaded,
            worker=self.name,
        )
        self._reporter = Reporter(
            broker, lanes, self._book, limiter, worker=self.name, concurrency=settings.worker.concurrency
        )
        self._loops: tuple[PeriodicLoop, ...] = (
            Sweeper(
                broker,
                lanes,
                settings.worker,
                condemn=self._consumer.condemn,
                condemned=resources.condemned,
                found=self._consumer.kick,
            ),
            Janitor(broker, lanes, settings, resources.archive),
            Lookout(broker, self._flights),
            self._reporter,
            _Upkeep(self._book, self._lease),
        )

    async def run(self, on_ready: OnReady | None) -> bool:
        """Until the process drains (True) or Redis has declared this name dead (False).

        Raises whatever ended one of the roles: a worker without its sweeper must not look alive.
        """
        self._lease.start()
        self._with.on_news(self._look)
        try:
            ends = {self._spawn(self._with.drain.wait(), "drain"), self._spawn(self._lease.lost.wait(), "lost")}
            roles = {self._spawn(self._serve(on_ready), "serve")}
            roles |= {self._spawn(loop.run(), loop.name) for loop in self._loops}
            try:
                done, _ = await asyncio.wait(ends | roles, return_when=asyncio.FIRST_COMPLETED)
                for task in done & roles:
                    task.result()
                if self._lease.lost.is_set():
                    await self._drop()
                    return False
                await self._drain()
                return True
            finally:
                await end_tasks(ends | roles)
        finally:
            await self._lease.close()

    async def _serve(self, on_ready: OnReady | None) -> None:
        """Load the flows, read their streams, follow the folder."""
        stirrings = self._with.stirrings
        snapshots = watch(self._with.registry, stirrings=stirrings() if stirrings else None)
        try:
            await self._apply(await anext(snapshots))
            with contextlib.suppress(HeadraceError):
                await self._reporter.tick()  # whoever is told that it is ready must find its routes
            if on_ready is not None:
                on_ready(self._ready())
            if self._with.alone is not None:
                await self._serve_alone(*self._with.alone)
                return
            consuming = self._spawn(self._consumer.run(), "consumer")
            following = self._spawn(self._follow(snapshots), "watcher")
            try:
                done, _ = await asyncio.wait({consuming, following}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                await consuming  # told to stop: the drain goes on without the folder
            finally:
                await end_tasks({consuming, following})
        finally:
            await snapshots.aclose()

    async def _serve_alone(self, route: str, entry_id: str) -> None:
        """Run the entry that this process is for, then others that must run alone, then end."""
        while entry_id and not self._with.drain.is_set():
            await self._serve_one(route, entry_id)
            entry_id = await self._with.next_alone()
        self._with.drain.set()
        await asyncio.Event().wait()  # the drain takes it from here

    async def _serve_one(self, route: str, entry_id: str) -> None:
        lane = self._with.lanes.get(route)
        tries = 0
        while lane is not None and lane.readable and not self._with.drain.is_set():
            try:
                await self._consumer.run_one(lane, entry_id)
                break
            except HeadraceError as error:
                tries += 1
                if tries == 1:
                    log.warning("redis.failed", step="adopt", code=error.code, error=error.message)
                await asyncio.sleep(min(2.0, 0.1 * 2 ** min(tries, 5)))

    def _look(self, keys: RouteKeys) -> None:
        for lane in self._with.lanes:
            lane.hungry |= lane.keys == keys
        self._consumer.kick()

    def _takes(self, route: Route) -> bool:
        if self._with.only and not ({route.name, self._asked_with(route)} & self._with.only):
            return False
        return not (self._with.leaves_exclusive and route.spec.isolation == "exclusive")

    def _asked_with(self, route: Route) -> str | None:
        """The route by whose name this one is asked for too; not in a process that is for one route or entry alone."""
        alone = self._with.slot is not None and not self._with.leaves_exclusive
        return None if alone else route.callbacks_of

    def _ask_alone(self, route: str, entry_id: str) -> None:
        self._with.tell({"alone": [route, entry_id]})

    async def _follow(self, snapshots: Any) -> None:
        async for snapshot in snapshots:
            await self._apply(snapshot)

    async def _apply(self, snapshot: Snapshot) -> None:
        await self._book.apply(snapshot)
        tries = 0
        while not self._with.drain.is_set():
            try:
                await self._book.listen(self._lease)
                await self._book.part(self._lease)
                break
            except HeadraceError as error:
                tries += 1
                if tries == 1:
                    log.warning("redis.failed", step="listen", code=error.code, error=error.message)
                await asyncio.sleep(min(2.0, 0.1 * 2 ** min(tries, 5)))
        self._reporter.nudge()

    def _ready(self) -> ReadyReport:
        lanes = list(self._with.lanes)
        return ReadyReport(
            worker=self.name,
            ready=tuple(sorted(lane.name for lane in lanes if lane.active and not lane.refused)),
            unready={lane.name: lane.needs or (lane.refused,) for lane in lanes if not lane.active or lane.refused},
            problems=self._book.problems,
        )

    # --- the end ----------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Stop reading, let the running ones finish, give the rest back, leave no consumer behind."""
        grace = self._with.settings.worker.grace
        log.info("worker.draining", worker=self.name, running=len(self._flights), grace=grace)
        self._consumer.stop()
        self._reporter.draining = True
        self._reporter.nudge()
        if self._with.slot is None:  # else the supervisor does so, where it was the platform that asked for the end
            await self._excuse()
        if not await self._landed(grace):
            log.warning("worker.releasing", worker=self.name, running=len(self._flights))
            self._flights.abort_all(Abort.DRAIN)
            if not await self._flights.empty(deadlines.LAST_WRITES):
                log.error("worker.left_unsettled", worker=self.name, running=len(self._flights))
        await self._lease.close()  # to leave is to be dead: a renewal after that would be told so
        await self._leave()
        log.info("worker.drained", worker=self.name)

    async def _excuse(self) -> None:
        """Should the platform kill this process at its own deadline, no attempt is charged for it."""
        try:
            await self._with.broker.leases.excuse(self._with.lanes.keys, worker=self.name)
        except HeadraceError as error:
            log.warning("redis.failed", step="excuse", code=error.code, error=error.message)

    async def _landed(self, grace: float) -> bool:
        """Wait for the running ones, until the grace is over or a second signal hurries."""
        empty = self._spawn(self._flights.empty(grace), "landing")
        hurry = self._spawn(self._with.hurry.wait(), "hurry")
        await asyncio.wait({empty, hurry}, return_when=asyncio.FIRST_COMPLETED)
        await end_tasks({empty, hurry})
        return not len(self._flights)

    async def _leave(self) -> None:
        try:
            for lane in self._with.lanes:
                if lane.listening:
                    await self._with.broker.leases.leave(lane.keys, worker=self.name)
            await self._with.broker.fleet.withdraw(self.name)
        except HeadraceError as error:
            # Its lease ends by itself; another worker's sweeper does the rest.
            log.warning("redis.failed", step="leave", code=error.code, error=error.message)

    async def _drop(self) -> None:
        """Drop everything in hand: others have it."""
        log.error("worker.renamed", worker=self.name, running=len(self._flights))
        self._consumer.stop()
        self._flights.abort_all(Abort.LOST)
        await self._flights.empty(deadlines.LAST_WRITES)
        self._with.lanes.reset()

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return asyncio.create_task(work, name=f"worker:{name}")


async def end_tasks(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel them, and wait until they have ended."""
    # A library's own cancel scope may swallow a cancellation that comes while it closes (seen in the folder watch):
    # ask again until the task has ended.
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.5)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("task.failed_at_end", task=task.get_name(), error=repr(error))
