"""Hangs: a child whose loop does not turn is killed; the run that holds it up is charged, the others are not."""

from __future__ import annotations

import asyncio

import structlog

from runtime.worker.children import Child, Children

log = structlog.get_logger("headrace.worker")


class Hangs:
    """Looks at every child's beat."""

    def __init__(self, children: Children, limit: float) -> None:
        self._children = children
        self._limit = limit

    async def run(self) -> None:
        """Look again and again; ``limit`` seconds without a turn are too many."""
        while True:
            await asyncio.sleep(min(1.0, self._limit / 4))
            for child in self._children:
                self._look(child)

    def _look(self, child: Child) -> None:
        beat = child.slot.ages[0]
        if child.reading is None or beat < self._limit or child.blame is not None:
            return
        blamed = child.slot.blamed
        child.blame = (blamed,) if blamed else ()
        log.error("child.hangs", worker=child.name, pid=child.pid, seconds=round(beat, 1), blamed=blamed)
        child.kill()
