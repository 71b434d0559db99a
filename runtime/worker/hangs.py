"""Hangs: a child that stands still is killed, in its start, in its life and in its end."""

from __future__ import annotations

import asyncio

import structlog

from runtime.settings import WorkerSettings
from runtime.worker.board import boot_time
from runtime.worker.children import Child, Children
from runtime.worker.punctual import STEP_MARGIN

log = structlog.get_logger("headrace.worker")


class Hangs:
    """Looks at every child's beat, and at the steps that it tells of."""

    def __init__(self, children: Children, settings: WorkerSettings) -> None:
        self._children = children
        self._limit = settings.hang_timeout
        self._start_limit = settings.start_timeout

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(min(1.0, self._limit / 4, self._start_limit / 4))
            for child in self._children:
                if not child.killed:
                    self._look(child)

    def late(self, child: Child) -> None:
        """Kill one that should have ended: that is nobody's fault, and costs no attempt."""
        log.error("child.killed", worker=child.name, pid=child.pid, reason="did not drain in time")
        child.blame = ()
        child.kill()

    def _look(self, child: Child) -> None:
        if child.drained_by is not None and boot_time() > child.drained_by:
            self.late(child)
        elif child.step:
            # A load may hold the loop up for long, and none of the runs beside it can help that.
            if (seconds := boot_time() - child.step_since) > self._start_limit + STEP_MARGIN:
                child.blame = ()
                self._kill(child, seconds, step=child.step)
        elif (beat := child.slot.ages[0]) > (self._limit if child.reading else self._start_limit):
            # The run that holds the loop up is charged, the others are not. Where nobody was seen, a thread may hold
            # the interpreter itself: all run again alone, and it is found out.
            child.blame = (child.slot.blamed,) if child.slot.blamed else None
            self._kill(child, beat, blamed=child.slot.blamed)

    def _kill(self, child: Child, seconds: float, **more: str) -> None:
        log.error("child.hangs", worker=child.name, pid=child.pid, seconds=round(seconds, 1), **more)
        child.kill()
