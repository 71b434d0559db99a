"""The watchdog: a thread that sees when code of a component holds the event loop up, whose it is, and ends it in time.

A run's timeout is kept by the loop; where a component blocks the loop, nothing on it can keep time. The thread then
shows on the board and tells the loop clock whom to blame, and when that run's own timeout is over it interrupts the
component: a signal to the main thread, whose handler raises in the component's own code. What is not to be interrupted
(code that catches everything, a call that holds the interpreter) is left to the supervisor, which kills a process that
hangs too long.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sys
import threading
import weakref
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, cast

import structlog

from runtime.worker.board import Slot, boot_time
from runtime.worker.loop_clock import LoopClock

log = structlog.get_logger("headrace.worker")

LAG = 1.0
"""Seconds without a turn of the loop from which somebody is to blame."""

LOOK = 0.25
"""Seconds between looks."""

ORPHAN_GRACE = 10.0
"""Seconds that a child has to end once its supervisor is gone."""


class LoopBlockedError(Exception):
    """Raised in a component that blocked the event loop beyond its run's timeout."""


@dataclass(frozen=True, slots=True)
class RunMark:
    """The run that a task belongs to: its token, when it began and when its timeout is over (boot clock).

    The time in which others held the loop up comes off: see LoopClock.
    """

    token: str
    deadline: float
    started: float = field(default_factory=boot_time)


current_run: contextvars.ContextVar[RunMark | None] = contextvars.ContextVar("current_run", default=None)
"""Set by the processor in the task of a run; tasks that the run makes inherit it."""


class Watchdog(AbstractContextManager["Watchdog"]):
    """Watches one event loop, which must be that of the main thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slot: Slot, clock: LoopClock, *, supervisor: int) -> None:
        self._supervisor = supervisor
        self._loop = loop
        self._slot = slot
        self._clock = clock
        # A task does not tell its context before Python 3.12; so it is noted when the task is made.
        self._marks: weakref.WeakKeyDictionary[asyncio.Future[Any], RunMark] = weakref.WeakKeyDictionary()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headrace-watchdog", daemon=True)
        self._before: Any = None

    def __enter__(self) -> Watchdog:
        self._loop.set_task_factory(cast(Any, self._make_task))  # typed for one signature of several Pythons
        self._before = signal.signal(signal.SIGUSR1, self._interrupt)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._loop.set_task_factory(None)
        signal.signal(signal.SIGUSR1, self._before or signal.SIG_DFL)

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **kw: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **kw)
        context = kw.get("context")
        mark = current_run.get() if context is None else context.get(current_run)
        if mark is not None:
            self._marks[task] = mark
        return task

    def _watch(self) -> None:
        blamed, looked = "", boot_time()
        while not self._stopped.wait(LOOK):
            if not _alive(self._supervisor):
                self._end_orphan()
            mark, late, looked = self._running(), boot_time() - looked > 2 * LOOK, boot_time()
            if not late:  # else this thread was held up as well, and whoever is at work now may not have done it
                self._clock.sees(mark.token if mark else "")
            if self._slot.ages[0] <= LAG:
                mark = None
            token = mark.token if mark else ""
            if token != blamed:
                self._slot.blame(token)
                blamed = token
            if mark is not None and self._is_over(mark):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def _is_over(self, mark: RunMark) -> bool:
        now = boot_time()
        return now > mark.deadline and now - self._clock.lag_of(mark.token, mark.started) > mark.deadline

    def _running(self) -> RunMark | None:
        task = asyncio.current_task(self._loop)
        return self._marks.get(task) if task is not None else None

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """On the main thread, between two instructions: raise only in the code of the run that is over its time."""
        mark = self._running()
        if mark is not None and self._slot.ages[0] > LAG and self._is_over(mark):
            raise LoopBlockedError("the component blocked the event loop beyond its run's timeout")

    def _end_orphan(self) -> None:
        # The loop is told by the channel and gives back what it can. One that is blocked does not hear it.
        if not self._stopped.wait(ORPHAN_GRACE):
            sys.stderr.write("headrace: the supervisor is gone and this process did not end by itself\n")
            os._exit(3)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
