"""The supervisor: it starts a worker's children, watches over them, and ends them in order.

    supervisor ── zygote (engine imported, flows loaded) ── children (one event loop each)

It runs no flow and imports no engine, so nothing that a component does can hold it up. A child that ends is noticed at
once and its entries are handed on; a child whose loop hangs is killed; a name that Redis has declared dead is killed.
Never is an entry handed on before the process that held it has ended.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.errors import ServerUnfit
from runtime.registry.registry import Registry
from runtime.registry.watch import watch
from runtime.settings import Settings
from runtime.telemetry.resident import give_back
from runtime.worker import deadlines
from runtime.worker.board import Board, boot_time
from runtime.worker.channel import Channel, Message
from runtime.worker.children import Child, Children, how
from runtime.worker.first_contact import until_admitted
from runtime.worker.hand_on import HandOn
from runtime.worker.hangs import Hangs
from runtime.worker.identity import new_name
from runtime.worker.outlook import Outlook
from runtime.worker.probes import ProbeServer, WorkerView
from runtime.worker.renewals import Renewals
from runtime.worker.restarts import Restarts
from runtime.worker.roles import Roles, first
from runtime.worker.suspects import Suspects
from runtime.worker.zygote import STOPS, ChildSpec
from runtime.worker.zygote_link import ZygoteLink
from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_ZYGOTE_GONE = 4
EXIT_CHILDREN_FAIL = 5
"""Children ended again and again before they read anything."""
EXIT_REDIS_UNFIT = 7
"""Redis can never serve this worker as it is, and the log says why."""
EXIT_ZYGOTE_HUNG = 6
"""The zygote stood still: in its start, which the log names, or later."""

MAX_ALONE = 2
"""Entries that run alone at once, each in a child of its own beside the others."""

OnReading = Callable[[Mapping[str, Any]], None]


class Supervisor:
    """The parent of a worker's processes."""

    def __init__(
        self,
        settings: Settings,
        *,
        redis_url: str,
        control: socket.socket,
        zygote: int,
        board: Board,
        flows: Path,
        only: frozenset[str] = frozenset(),
        on_reading: OnReading | None = None,
    ) -> None:
        self._settings = settings.worker
        self._broker = Broker.connect(redis_url, settings.redis, settings.retention)
        self._board = board
        self._registry = Registry(flows)
        self._only = only
        self._on_reading = on_reading
        self._children = Children()
        self._zygote = ZygoteLink(control, zygote, forked=self._forked, exited=self._exited)
        self._renewals = Renewals(self._broker, self._children, settings.worker.lease, refused=self._unfit)
        self._hangs = Hangs(self._children, settings.worker)
        self._hand_on = HandOn(self._broker, self._children)
        self._outlook = Outlook(self._broker, self._children, self._renewals, settings.worker)
        self._suspects: Suspects[Child] = Suspects()
        self._roles = Roles(self._role_failed)
        self._exclusive: frozenset[str] = frozenset()
        self._admitted = asyncio.Event()
        self._folder_known = asyncio.Event()
        self._drain = asyncio.Event()
        self._changed = asyncio.Event()
        self._restarts = Restarts()
        self._exit = EXIT_OK

    # --- from start to end ------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Until SIGTERM or SIGINT has drained every child. Returns the exit code."""
        loop = asyncio.get_running_loop()
        # Who is started with SIGHUP ignored (nohup) is to outlive its terminal.
        for number in [n for n in STOPS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]:
            loop.add_signal_handler(number, self._signalled, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        self._zygote.open()
        self._begin_roles()
        try:
            for known in (self._zygote.ready, self._folder_known, self._admitted):
                await first(known, self._drain, self._zygote.gone)
            self._outlook.begins()
            while not self._drain.is_set() and not self._zygote.gone.is_set():
                await self._fill()
                await first(self._changed, self._drain, self._zygote.gone)
                self._changed.clear()
            if self._zygote.gone.is_set() and not self._drain.is_set():
                log.error("zygote.gone")
                self._exit = EXIT_ZYGOTE_HUNG if self._zygote.hung else EXIT_ZYGOTE_GONE
            await self._end_children()
        finally:
            await self._roles.end(deadlines.MARGIN)
            self._zygote.close()
            await self._broker.close()
        return self._exit

    def _begin_roles(self) -> None:
        self._roles.begin(self._renewals.run(), "renewals")
        self._roles.begin(self._hangs.run(), "hangs")
        self._roles.begin(self._zygote.watch(self._settings.start_timeout), "zygote")
        self._roles.begin(self._watch_folder(), "folder")
        self._roles.begin(self._be_admitted(), "admission")
        self._roles.begin(self._await_orphans(), "orphans")
        if (port := self._settings.probe_port) is not None:
            self._roles.begin(self._outlook.run(), "outlook")
            self._roles.begin(ProbeServer(self._settings.probe_host, port, self.view).run(), "probes")

    def _role_failed(self) -> None:
        self._exit = EXIT_FAILED
        self._drain.set()

    def _signalled(self, number: int) -> None:
        # A terminal that closes and its shell each send a SIGHUP: the second one is no second wish.
        hurry = self._drain.is_set() and number != signal.SIGHUP
        log.info("worker.signalled", signal=signal.Signals(number).name, hurry=hurry)
        self._drain.set()
        for child in self._children:
            child.channel.tell({"hurry": True} if hurry else {"drain": True})

    async def _be_admitted(self) -> None:
        try:
            await until_admitted(self._broker)
            self._admitted.set()
        except ServerUnfit as error:
            self._unfit(error)

    def _unfit(self, error: HeadraceError) -> None:
        if not self._drain.is_set():
            log.error("worker.not_started", code=error.code, error=error.message)
            self._exit = EXIT_REDIS_UNFIT
            self._drain.set()

    async def _end_children(self) -> None:
        """Drain every child, and kill what does not end in its time."""
        for child in self._children:
            child.channel.tell({"drain": True})
        ends = [self._roles.errand(child.ended.wait(), f"end:{child.name}") for child in self._children]
        if not ends:
            return
        self._roles.errand(self._hand_on.excuse(), "excuse")
        _, late = await asyncio.wait(ends, timeout=deadlines.of_kill(self._settings.grace))
        if not late:
            return
        self._exit = EXIT_FAILED
        for child in self._children:
            self._hangs.late(child)
        await asyncio.wait(late, timeout=deadlines.MARGIN)

    def view(self) -> WorkerView:
        """The worker as a probe sees it."""
        return self._outlook.view(loaded=self._zygote.ready.is_set(), draining=self._drain.is_set())

    # --- children ---------------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        """Start children until there are as many as there should be, and those that run one entry alone."""
        if self._restarts.given_up:
            log.error("children.fail", times=self._restarts.failed_starts)
            self._exit = EXIT_CHILDREN_FAIL
            self._drain.set()
            return
        serving = [child.spec for child in self._children if not child.recycling and not child.runs_alone]
        # One that is recycled may still finish its runs for the whole grace: at most one more than there should be.
        general = sum(child.general for child in self._children)
        wanted = self._settings.processes - sum(spec.exclusive is None for spec in serving)
        for _ in range(min(wanted, self._settings.processes + 1 - general)):
            await self._start()
        for route in self._exclusive - {spec.exclusive for spec in serving}:
            await self._start(exclusive=route)
        for entry in self._suspects.waiting:
            if self._suspects.busy < MAX_ALONE:
                self._suspects.dismiss()
                self._suspects.give(entry, await self._start(alone=entry))

    async def _start(self, *, alone: tuple[str, str] | None = None, exclusive: str | None = None) -> Child:
        number = self._board.take()
        spec = ChildSpec(name=new_name(), slot=number, alone=alone, exclusive=exclusive)
        ours, theirs = socket.socketpair()
        child: Child

        async def heard(message: Message) -> Message | None:
            return await self._heard(child, message)

        channel = Channel(ours, heard)
        child = Child(spec, channel, self._board.slot(number), started=asyncio.get_running_loop().time())
        self._children.add(child)
        await channel.open()
        with theirs:
            asked = self._zygote.fork(spec, theirs)
        if not asked or self._zygote.gone.is_set():
            self._roles.errand(self._await_orphan(child), f"orphan:{child.name}")
        return child

    def _forked(self, name: str, pid: int) -> None:
        if (child := self._children.get(name)) is not None:
            child.pid = pid

    async def _heard(self, child: Child, message: Message) -> Message | None:
        if "watch" in message:
            child.keys = tuple(RouteKeys(stream, group) for stream, group in message["watch"])
            return {"ok": await self._renewals.until_answered(child)}
        if "renew" in message:
            return {"ok": await self._renewals.renew(child)}
        if "reading" in message:
            self._reads(child, message["reading"])
        if "step" in message:
            child.is_at(message["step"])
        if "recycling" in message:
            self._recycles(child)
            self._changed.set()
        if "next" in message and child.spec.alone is not None:
            self._changed.set()  # its place is free from now on
            return {"entry": await self._suspects.next(child, child.spec.alone[0])}
        if "alone" in message:
            self._suspects.ask((message["alone"][0], message["alone"][1]))
            self._changed.set()
        return None

    def _recycles(self, child: Child) -> None:
        """A child ends, and another takes its place."""
        child.recycling = True
        child.drained_by = boot_time() + deadlines.of_kill(self._settings.grace)

    def _reads(self, child: Child, report: Message) -> None:
        """A child reads. Once all that were started do: say what this worker runs, and what not."""
        child.reads(report)
        child.pid = report["pid"]  # it may be here before the zygote, which forked it, tells of it
        self._restarts.reads()
        log.info("child.reading", worker=child.name, pid=child.pid, routes=len(report["ready"]))
        told = [child.reading for child in self._children if not child.runs_alone]
        if self._on_reading is None or len(told) < self._settings.processes + len(self._exclusive):
            return
        on_reading, reports = self._on_reading, [report for report in told if report is not None]
        if len(reports) < len(told):
            return
        self._on_reading = None
        unready = {name: needs for report in reports for name, needs in report["unready"].items()}
        ready = {name for report in reports for name in report["ready"]}
        give_back()  # what its imports have left: it makes little from now on
        on_reading({**reports[0], "ready": sorted(ready), "unready": unready})

    def _exited(self, pid: int, status: int) -> None:
        if (child := self._children.of_pid(pid)) is not None:
            self._ended(child, status)

    def _ended(self, child: Child, status: int | None) -> None:
        """A child has ended and was waited for: only now may what it held go to others. None: nobody knows how."""
        expected = child.slot.left
        self._children.remove(child)
        self._board.give_back(child.spec.slot)
        child.ended.set()
        lived = asyncio.get_running_loop().time() - child.started
        (log.info if expected else log.error)(
            "child.ended", worker=child.name, pid=child.pid, how=how(status), lived=round(lived, 1)
        )
        pause = 0.0
        if not expected:
            pause = self._restarts.died(child, lived=lived)
            self._roles.errand(self._hand_on.all_of(child), f"hand-on:{child.name}")
        self._roles.errand(child.channel.close(), f"close:{child.name}")
        self._suspects.ended(child)
        asyncio.get_running_loop().call_later(pause, self._changed.set)

    async def _await_orphans(self) -> None:
        """Without the zygote nobody waits for its children: look for a child's end once it has hung up."""
        await self._zygote.gone.wait()
        for child in self._children:
            self._roles.errand(self._await_orphan(child), f"orphan:{child.name}")

    async def _await_orphan(self, child: Child) -> None:
        await child.gone()
        if child in self._children:
            self._ended(child, None)

    # --- the folder -------------------------------------------------------------------------------------------------

    async def _watch_folder(self) -> None:
        """Know which routes want a process of their own; one whose route no longer does is drained.

        The children look at the folder when this finds a change, so that an idle one costs one look and not many.
        """
        async for snapshot in watch(self._registry, looked=self._tell_of_folder):
            routes = [route for route in snapshot.routes.values() if not self._only or route.name in self._only]
            self._exclusive = frozenset(route.name for route in routes if route.spec.isolation == "exclusive")
            for child in self._children:
                if child.spec.exclusive is not None and child.spec.exclusive not in self._exclusive:
                    self._recycles(child)
                    child.channel.tell({"drain": True})
            self._folder_known.set()
            self._changed.set()

    def _tell_of_folder(self) -> None:
        for child in self._children:
            child.channel.tell({"folder": True})
