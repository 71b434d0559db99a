"""The base of a periodic loop: an interval with jitter, and an error backoff, in a named task that is watched."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod

import structlog

from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")

MAX_BACKOFF = 5.0
"""Seconds between tries while Redis is away: it must be noticed within 5 s of its return."""


class PeriodicLoop(ABC):
    """Calls ``tick`` every ``interval`` seconds, give or take a fifth, until its task is cancelled.

    An error of ours is logged and waited out; any other one ends the task, and the process with it: a role that has
    silently ended is worse than a restart.
    """

    name: str

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._wake = asyncio.Event()

    @abstractmethod
    async def tick(self) -> None:
        """The work of one round."""

    async def run(self) -> None:
        """For ever."""
        failures = 0
        while True:
            try:
                await self.tick()
                failures = 0
            except HeadraceError as error:
                failures += 1
                if failures == 1:
                    log.warning("loop.failed", loop=self.name, code=error.code, error=error.message)
            pause = self.interval if not failures else min(MAX_BACKOFF, 0.1 * 2**failures)
            await self._pause(pause * random.uniform(0.8, 1.2))  # noqa: S311  jitter, not a secret

    def nudge(self) -> None:
        """Do the next round now."""
        self._wake.set()

    async def _pause(self, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        self._wake.clear()
