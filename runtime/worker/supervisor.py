"""The supervisor: it keeps the children's leases from outside their loops, restarts them, and hands on what they held.

    supervisor ── zygote (engine imported, flows loaded) ── children (one event loop each)

It runs no flow and imports no engine, so nothing that a component does can hold it up. A child that ends is noticed at
once and its entries are handed on; a child whose loop hangs is killed; a name that Redis has declared dead is killed.
Never is an entry handed on before the process that held it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.broker.leases import LeaseState
from runtime.registry.registry import Registry
from runtime.registry.watch import watch
from runtime.settings import Settings
from runtime.worker.board import Board, Slot, boot_time
from runtime.worker.channel import Channel, Message
from runtime.worker.identity import LAST_WRITES, end_tasks, new_name
from runtime.worker.probes import ChildView, ProbeServer, WorkerView
from runtime.worker.suspects import Suspects
from runtime.worker.zygote import STOPS, ChildSpec
from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_ZYGOTE_GONE = 4
EXIT_CHILDREN_FAIL = 5
"""Children ended again and again before they read anything."""

STEADY = 30.0
"""Seconds after which a child that ends has not failed at its start."""

MAX_FAILED_STARTS = 5
"""Children that may fail at their start in a row before the worker gives up and lets its platform see it."""

MAX_ALONE = 2
"""Entries that run alone at once, each in a child of its own beside the others."""

BACKLOG_LOOK = 5.0
"""Seconds between looks at what waits."""

ORPHAN_LOOK = 0.05
"""Seconds between looks for the end of a child whose parent is gone."""

KILL_MARGIN = 5.0
"""Seconds beyond the drain that a child has before it is killed."""


@dataclass(eq=False)
class Child:
    """One child process as the supervisor sees it. Times of the event loop's clock."""

    spec: ChildSpec
    channel: Channel
    slot: Slot
    started: float
    pid: int = 0
    keys: tuple[RouteKeys, ...] = ()
    reading: Message | None = None
    recycling: bool = False
    unrenewed: bool = False
    """The last renewal did not succeed, and that was told."""
    blame: tuple[str, ...] | None = None
    """Whose attempts its death is charged to; None: everybody's that ran."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


OnReading = Callable[[Mapping[str, Any]], None]


class Supervisor:
    """The parent of a worker's processes."""

    def __init__(
        self,
        settings: Settings,
        *,
        redis_url: str,
        control: socket.socket,
        board: Board,
        flows: Path,
        only: frozenset[str] = frozenset(),
        on_reading: OnReading | None = None,
    ) -> None:
        self._settings = settings
        self._broker = Broker.connect(redis_url, settings.redis, settings.retention)
        self._control = control
        self._board = board
        self._processes = settings.worker.processes
        self._on_reading = on_reading
        self.children: dict[str, Child] = {}
        self._registry = Registry(flows)
        self._only = only
        self._exclusive: frozenset[str] = frozenset()
        self._folder_known = asyncio.Event()
        self._suspects: Suspects[Child] = Suspects()
        self._drain = asyncio.Event()
        self._changed = asyncio.Event()
        self._zygote_ready = asyncio.Event()
        self._zygote_gone = asyncio.Event()
        self._failed_starts = 0
        self._short_lives = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._exit = EXIT_OK
        self._started = boot_time()
        self._redis_answered = 0.0
        self._enough_children = boot_time()
        self._backlog_since: float | None = None

    # --- from start to end ------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Until SIGTERM or SIGINT has drained every child. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self._signalled, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        self._control.setblocking(False)
        loop.add_reader(self._control, self._hear_zygote)
        roles = [self._spawn(self._renew(), "renewals"), self._spawn(self._watch_hangs(), "hangs")]
        roles.append(self._spawn(self._watch_backlog(), "backlog"))
        roles.append(self._spawn(self._watch_folder(), "folder"))
        if (port := self._settings.worker.probe_port) is not None:
            server = ProbeServer(self._settings.worker.probe_host, port, self.view)
            roles.append(self._spawn(server.run(), "probes"))
        try:
            for known in (self._zygote_ready, self._folder_known):
                await self._first(known, self._drain, self._zygote_gone)
            self._enough_children = boot_time()
            while not self._drain.is_set() and not self._zygote_gone.is_set():
                await self._fill()
                await self._first(self._changed, self._drain, self._zygote_gone)
                self._changed.clear()
            if self._zygote_gone.is_set() and not self._drain.is_set():
                log.error("zygote.gone")
                self._exit = EXIT_ZYGOTE_GONE
            await self._end_children()
        finally:
            await self._settle_tasks(set(roles))
            loop.remove_reader(self._control)
            self._control.close()
            await self._broker.close()
        return self._exit

    def _signalled(self, number: int) -> None:
        hurry = self._drain.is_set()
        log.info("worker.signalled", signal=signal.Signals(number).name, hurry=hurry)
        self._drain.set()
        for child in self.children.values():
            child.channel.tell({"hurry": True} if hurry else {"drain": True})

    async def _end_children(self) -> None:
        """Drain every child, and kill what does not end in its time."""
        for child in list(self.children.values()):
            child.channel.tell({"drain": True})
        ends = [self._spawn(_wait(child.ended), f"end:{child.spec.name}") for child in self.children.values()]
        if not ends:
            return
        _, late = await asyncio.wait(ends, timeout=self._settings.worker.grace + 2 * LAST_WRITES + KILL_MARGIN)
        if not late:
            return
        self._exit = EXIT_FAILED
        for child in list(self.children.values()):
            log.error("child.killed", worker=child.spec.name, pid=child.pid, reason="did not drain in time")
            child.blame = ()
            self._kill(child)
        await asyncio.wait(late, timeout=KILL_MARGIN)

    # --- children ---------------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        """Start children until there are as many as there should be, and those that run one entry alone."""
        if self._failed_starts >= MAX_FAILED_STARTS:
            log.error("children.fail", times=self._failed_starts)
            self._exit = EXIT_CHILDREN_FAIL
            self._drain.set()
            return
        serving = [c.spec for c in self.children.values() if not c.recycling and c.spec.alone is None]
        # One that is recycled may still finish its runs for the whole grace: at most one more than there should be.
        general = sum(_is_general(child.spec) for child in self.children.values())
        wanted = self._processes - sum(spec.exclusive is None for spec in serving)
        for _ in range(min(wanted, self._processes + 1 - general)):
            await self._start()
        for route in self._exclusive - {spec.exclusive for spec in serving}:
            await self._start(exclusive=route)
        for entry in self._suspects.waiting:
            if sum(child.spec.alone is not None for child in self.children.values()) < MAX_ALONE:
                self._suspects.give(entry, await self._start(alone=entry))

    async def _start(self, *, alone: tuple[str, str] | None = None, exclusive: str | None = None) -> Child:
        number = self._board.take()
        spec = ChildSpec(name=new_name(), slot=number, alone=alone, exclusive=exclusive)
        ours, theirs = socket.socketpair()
        child: Child

        async def heard(message: Message) -> Message | None:
            return await self._heard(child, message)

        channel = Channel(ours, heard)
        slot = self._board.slot(number)
        child = Child(spec, channel, slot, started=asyncio.get_running_loop().time())
        self.children[spec.name] = child
        await channel.open()
        with theirs:
            try:
                socket.send_fds(self._control, [spec.dump()], [theirs.fileno()])
            except OSError as error:
                log.error("zygote.unreachable", error=repr(error))  # noqa: TRY400  it has ended, and is heard of soon
                self._zygote_gone.set()
        return child

    async def _heard(self, child: Child, message: Message) -> Message | None:
        if "watch" in message:
            child.keys = tuple(RouteKeys(stream, group) for stream, group in message["watch"])
            return {"ok": await self._renew_until_answered(child)}
        if "renew" in message:
            return {"ok": await self._renew_child(child)}
        if "reading" in message:
            child.reading = message["reading"]
            self._failed_starts = 0
            log.info("child.reading", worker=child.spec.name, pid=child.pid, routes=len(message["reading"]["ready"]))
            self._tell_reading()
        if "recycling" in message:
            child.recycling = True
            self._changed.set()
        if "next" in message and child.spec.alone is not None:
            return {"entry": await self._suspects.next(child, child.spec.alone[0])}
        if "alone" in message:
            self._suspects.ask((message["alone"][0], message["alone"][1]))
            self._changed.set()
        return None

    def _tell_reading(self) -> None:
        """Once all that were started read: say what this worker runs, and what not."""
        told = [child.reading for child in self.children.values() if child.spec.alone is None]
        if self._on_reading is None or len(told) < self._processes + len(self._exclusive):
            return
        on_reading, reports = self._on_reading, [report for report in told if report is not None]
        if len(reports) < len(told):
            return
        self._on_reading = None
        unready = {name: needs for report in reports for name, needs in report["unready"].items()}
        ready = {name for report in reports for name in report["ready"]}
        on_reading({**reports[0], "ready": sorted(ready), "unready": unready})

    def _ended(self, child: Child, status: int | None) -> None:
        """A child has ended and was waited for: only now may what it held go to others. None: nobody knows how."""
        del self.children[child.spec.name]
        self._board.give_back(child.spec.slot)
        child.ended.set()
        lived = asyncio.get_running_loop().time() - child.started
        expected = status == EXIT_OK
        (log.info if expected else log.error)(
            "child.ended", worker=child.spec.name, pid=child.pid, how=_how(status), lived=round(lived, 1)
        )
        if not expected:
            self._failed_starts += child.reading is None and lived < STEADY
            self._short_lives = self._short_lives + 1 if lived < STEADY else 0
            self._spawn(self._hand_on(child), f"hand-on:{child.spec.name}")
        self._spawn(child.channel.close(), f"close:{child.spec.name}")
        self._suspects.ended(child)
        pause = 0.0 if expected else min(5.0, 0.02 * 2 ** min(self._short_lives, 10))
        asyncio.get_running_loop().call_later(pause * random.uniform(0.5, 1.0), self._changed.set)  # noqa: S311

    async def _hand_on(self, child: Child) -> None:
        """Give a dead child's entries to whoever reads, until Redis has taken it."""
        tries = 0
        left = list(child.keys)
        while left:
            try:
                swept = await self._broker.recovery.declare_dead(left[0], worker=child.spec.name, blame=child.blame)
            except HeadraceError as error:
                if error.code == "group_missing":
                    left.pop(0)
                    continue
                tries += 1
                if tries == 1:
                    log.warning("redis.failed", step="hand-on", code=error.code, error=error.message)
                await asyncio.sleep(min(2.0, 0.05 * 2 ** min(tries, 6)))
                continue
            if swept.poison:
                self._condemn(left[0], swept.poison)
            if swept.moved:
                log.warning("entries.handed_on", stream=left[0].stream, entries=swept.moved, worker=child.spec.name)
            else:
                left.pop(0)

    def _condemn(self, keys: RouteKeys, entries: Sequence[str]) -> None:
        """Have a child dead-letter what killed one process after the other before it began."""
        log.error("entries.condemned", stream=keys.stream, entries=list(entries))
        for child in self.children.values():
            if child.reading is not None and child.spec.alone is None and keys in child.keys:
                child.channel.tell({"condemn": [keys.stream, keys.group, list(entries)]})
                return
        # Nobody reads now. The audit hands them out again, and the next death brings them back here.

    def _kill(self, child: Child) -> None:
        if child.pid:  # 0, where the zygote has not forked it yet, would mean this process's own group
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)  # works on a stopped process too

    # --- leases -----------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Renew every child's leases every third of a lease; more often while Redis does not answer."""
        failures = 0
        while True:
            good = await asyncio.gather(*(self._renew_child(child) for child in list(self.children.values())))
            failures = 0 if all(good) else failures + 1
            await asyncio.sleep(self._settings.worker.lease / 3 if not failures else min(1.0, 0.1 * 2**failures))

    async def _renew_until_answered(self, child: Child) -> bool:
        failures = 0
        while not child.ended.is_set():
            if await self._renew_child(child):
                return True
            failures += 1
            await asyncio.sleep(min(1.0, 0.05 * 2**failures))
        return False

    async def _renew_child(self, child: Child) -> bool:
        if not child.keys or child.ended.is_set():
            return True
        try:
            # A connection that has gone silent must not use up the lease: another try has to fit into what is left.
            async with asyncio.timeout(self._settings.worker.lease / 5):
                states = await self._broker.leases.renew(
                    child.keys, worker=child.spec.name, ttl=self._settings.worker.lease
                )
        except (HeadraceError, TimeoutError) as error:
            told = log.debug if child.unrenewed else log.warning
            told("lease.not_renewed", worker=child.spec.name, code=getattr(error, "code", "timeout"), error=str(error))
            child.unrenewed = True
            return False
        child.unrenewed = False
        self._redis_answered = boot_time()
        if LeaseState.DEAD in states:
            # It was declared dead while this supervisor was away: others have its entries.
            log.error("lease.lost", worker=child.spec.name, pid=child.pid)
            self._kill(child)
            return False
        return True

    async def _watch_hangs(self) -> None:
        """Kill a child whose loop does not turn; the run that holds it up is charged, the others are not."""
        limit = self._settings.worker.hang_timeout
        while True:
            await asyncio.sleep(min(1.0, limit / 4))
            for child in list(self.children.values()):
                beat = child.slot.ages[0]
                if child.reading is None or beat < limit or child.blame is not None:
                    continue
                blamed = child.slot.blamed
                child.blame = (blamed,) if blamed else ()
                log.error("child.hangs", worker=child.spec.name, pid=child.pid, seconds=round(beat, 1), blamed=blamed)
                self._kill(child)

    async def _watch_folder(self) -> None:
        """Know which routes want a process of their own; one whose route no longer does is drained."""
        async for snapshot in watch(self._registry):
            routes = snapshot.routes.values()
            wanted = {
                r.name for r in routes if r.spec.isolation == "exclusive" and (not self._only or r.name in self._only)
            }
            self._exclusive = frozenset(wanted)
            for child in self.children.values():
                if child.spec.exclusive is not None and child.spec.exclusive not in wanted:
                    child.recycling = True
                    child.channel.tell({"drain": True})
            self._folder_known.set()
            self._changed.set()

    async def _watch_backlog(self) -> None:
        """Note for how long events have waited on routes that are not blocked, and how many children read."""
        while True:
            await asyncio.sleep(BACKLOG_LOOK)
            reading = [c for c in self.children.values() if c.reading is not None and c.spec.alone is None]
            if sum(_is_general(c.spec) for c in reading) >= self._processes:
                self._enough_children = boot_time()
            keys = list({key: None for child in reading if _is_general(child.spec) for key in child.keys})
            try:
                waits = await self._waits(keys)
            except HeadraceError:
                continue  # Redis is away: nothing is known, and nothing is to blame
            if not waits:
                self._backlog_since = None
            elif self._backlog_since is None:
                self._backlog_since = boot_time()

    async def _waits(self, keys: list[RouteKeys]) -> bool:
        if not keys:
            return False
        known = await self._broker.fleet.routes()
        ready = {(entry.stream, entry.group) for entry in known.values() if entry.ready}
        keys = [key for key in keys if (key.stream, key.group) in ready]
        counts = await self._broker.streams.counts(keys, [key.stream for key in keys])
        blocked = await self._broker.streams.blocked(keys)
        self._redis_answered = boot_time()
        return any(count.waiting and block is None for count, block in zip(counts, blocked, strict=True))

    def view(self) -> WorkerView:
        """The worker as a probe sees it."""
        now = boot_time()
        worker = self._settings.worker
        return WorkerView(
            started=now - self._started,
            loaded=self._zygote_ready.is_set(),
            draining=self._drain.is_set(),
            processes=self._processes,
            concurrency=worker.concurrency,
            hang_timeout=worker.hang_timeout,
            redis_age=now - self._redis_answered,
            short_of_children=now - self._enough_children,
            backlog=0.0 if self._backlog_since is None else now - self._backlog_since,
            children=tuple(
                ChildView(c.spec.name, c.reading is not None, *c.slot.ages, c.slot.used)
                for c in self.children.values()
                if _is_general(c.spec)
            ),
        )

    # --- zygote -----------------------------------------------------------------------------------------------------

    def _hear_zygote(self) -> None:
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            self._zygote_gone.set()
            for orphan in self.children.values():
                self._spawn(self._wait_for_orphan(orphan), f"orphan:{orphan.spec.name}")
            return
        message = json.loads(data)
        if "ready" in message:
            self._zygote_ready.set()
        if "forked" in message and (child := self.children.get(message["forked"])) is not None:
            child.pid = message["pid"]
        if "exited" in message:
            for child in list(self.children.values()):
                if child.pid == message["exited"]:
                    self._ended(child, message["status"])

    async def _wait_for_orphan(self, child: Child) -> None:
        """Without the zygote nobody waits for its children: look for a child's end once it has hung up."""
        await child.channel.closed.wait()
        while child.pid and _exists(child.pid):  # noqa: ASYNC110  no signal tells of a stranger's end
            await asyncio.sleep(ORPHAN_LOOK)
        if child.spec.name in self.children:
            self._ended(child, None)

    # --- helpers ----------------------------------------------------------------------------------------------------

    async def _first(self, *events: asyncio.Event) -> None:
        waits = [asyncio.create_task(event.wait(), name="supervisor:wait") for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"supervisor:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A supervisor without one of its roles must not look alive.
            log.error("supervisor.role_failed", role=task.get_name(), exc_info=error)
            self._exit = EXIT_FAILED
            self._drain.set()

    async def _settle_tasks(self, roles: set[asyncio.Task[None]]) -> None:
        if others := self._tasks - roles:
            await asyncio.wait(others, timeout=KILL_MARGIN)
        await end_tasks(self._tasks | roles)


def _is_general(spec: ChildSpec) -> bool:
    return spec.alone is None and spec.exclusive is None


def _exists(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False  # an orphan of a container's first process is that one's child
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _how(status: int | None) -> str:
    if status is None:
        return "unknown, its parent had ended"
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
