"""Handing on: what a dead child held goes to whoever reads, at once, and never before its process was waited for.

Whose doing a death is goes with it: an obituary that stands in Redis before the death is written over by that of a
supervisor that saw it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import structlog

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.worker.children import Child, Children
from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")


class HandOn:
    """Gives back what dead children held."""

    def __init__(self, broker: Broker, children: Children) -> None:
        self._broker = broker
        self._children = children
        self._excused = asyncio.Event()
        self._excused.set()

    async def excuse(self) -> None:
        """Should the platform kill this worker at its own deadline, no attempt of any child's is charged for it."""
        self._excused.clear()
        children = list(self._children)
        asked = (self._broker.leases.excuse(child.keys, worker=child.name) for child in children)
        try:
            # One that fails must not end the wait for the others: theirs would be written after a death's own.
            answers = await asyncio.gather(*asked, return_exceptions=True)
        finally:
            self._excused.set()
        log.info("worker.ending", children=len(children))
        for error in answers:
            if isinstance(error, HeadraceError):
                log.warning("redis.failed", step="excuse", code=error.code, error=error.message)
            elif isinstance(error, BaseException):
                raise error

    async def all_of(self, child: Child) -> None:
        """Give an ended child's entries to whoever reads, until Redis has taken it; then tell nobody of it any more."""
        await self._excused.wait()  # written after the death's own, it would excuse what killed the child
        tries = 0
        left = list(child.keys)
        while left:
            try:
                swept = await self._broker.recovery.declare_dead(left[0], worker=child.name, blame=child.blame)
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
                log.warning("entries.handed_on", stream=left[0].stream, entries=swept.moved, worker=child.name)
                self._tell_readers(left[0])
            else:
                left.pop(0)
        with contextlib.suppress(HeadraceError):  # it would be forgotten by itself, a little later
            await self._broker.fleet.withdraw(child.name)

    def _tell_readers(self, keys: RouteKeys) -> None:
        """What is parked makes no noise: without a word it would be found at the next look, seconds later."""
        for child in self._children:
            if not child.runs_alone and keys in child.keys:
                child.channel.tell({"look": [keys.stream, keys.group]})

    def _condemn(self, keys: RouteKeys, entries: Sequence[str]) -> None:
        """Have a child dead-letter what killed one process after the other before it began."""
        log.error("entries.condemned", stream=keys.stream, entries=list(entries))
        for child in self._children:
            if child.reading is not None and not child.runs_alone and keys in child.keys:
                child.channel.tell({"condemn": [keys.stream, keys.group, list(entries)]})
                return
        # Nobody reads now. The audit hands them out again, and the next death brings them back here.
