"""Deliveries in hand: what runs, and how a run is told to stop."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import structlog

from runtime.broker.gate import Claim
from runtime.worker.lanes import Lane
from runtime.worker.progress import Progress

log = structlog.get_logger("headrace.worker")


class Abort(Enum):
    """Why a run is ended before its time."""

    DRAIN = "drain"
    """The process goes: give the attempt back."""
    LOST = "lost"
    """Another worker may have it: write nothing."""
    CANCELLED = "cancelled"
    """Somebody wants it ended: it is settled as cancelled."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An execution under way."""

    claim: Claim
    progress: Progress


class Flight:
    """One delivery from its reading to its settlement."""

    def __init__(self, lane: Lane, entry_id: str, *, condemned: bool = False) -> None:
        self.lane = lane
        self.entry_id = entry_id
        self.condemned = condemned
        """It was lost with its workers too often: it is dead-lettered as it is, neither decoded nor run."""
        self.abort: Abort | None = None
        self.attempt: Attempt | None = None
        """What is executed now."""
        self.left: asyncio.Task[Any] | None = None
        """Its run, if that did not end when it was cancelled: it still takes a slot."""
        self._over: asyncio.Future[None] | None = None

    def end(self, why: Abort) -> None:
        """Tell the run to stop."""
        if self.abort is None or why is Abort.LOST:
            self.abort = why
        _wake(self._over)

    async def watch(self, run: asyncio.Task[Any], seconds: float) -> None:
        """Return when the run has ended, when it is told to stop, or after so many seconds."""
        loop = asyncio.get_running_loop()
        over = self._over = loop.create_future()
        timer = loop.call_later(seconds, _wake, over)
        ended = functools.partial(_wake, over)
        run.add_done_callback(ended)
        try:
            await over
        finally:
            timer.cancel()
            run.remove_done_callback(ended)


def _wake(over: asyncio.Future[None] | None, _: object = None) -> None:
    if over is not None and not over.done():
        over.set_result(None)


class Flights:
    """All deliveries in hand."""

    def __init__(self) -> None:
        self._flights: dict[asyncio.Task[None], Flight] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        return iter(tuple(self._flights.values()))

    def add(self, task: asyncio.Task[None], flight: Flight) -> None:
        """Keep the task of a delivery, so that it is neither collected nor forgotten."""
        self._flights[task] = flight
        self._some.set()
        task.add_done_callback(self._end)

    def abort_all(self, why: Abort) -> None:
        """Tell every run to stop."""
        for flight in self._flights.values():
            flight.end(why)

    async def some(self) -> None:
        """Wait until anything is in hand."""
        await self._some.wait()

    async def empty(self, timeout: float | None) -> bool:  # noqa: ASYNC109  the caller's deadline is a plain number
        """Wait until nothing is in hand; False if ``timeout`` seconds were not enough."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._flights:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            await asyncio.wait(set(self._flights), timeout=left)
        return True

    def _end(self, task: asyncio.Task[None]) -> None:
        flight = self._flights.pop(task)
        if not self._flights:
            self._some.clear()
        if not task.cancelled() and (error := task.exception()) is not None:
            # A fault of ours. The entry is still pending to this worker: it is found again by the reconciler, and its
            # attempts are counted, so that it ends in the dead letters and not in a circle.
            log.error(
                "delivery.crashed",
                route=flight.lane.name,
                code=type(error).__name__,
                delivery=task.get_name(),
                exc_info=error,
            )
