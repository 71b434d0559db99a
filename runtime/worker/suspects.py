"""Entries that are suspected of killing their worker, and which child runs which of them alone, one after the other.

A death leaves as many suspects as there were runs beside the killer. A process for each would take a fork, a start and
a goodbye a time; so one that has run its entry is given the next, and waits a little for another before it ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

IN_TURN = 32
"""Entries that one child runs, before it leaves its place to another route's."""

LINGERS = 2.0
"""Seconds that a child waits for another entry before it ends."""

Entry = tuple[str, str]
"""Route and entry id."""

Runner = TypeVar("Runner", bound=Hashable)


class Suspects(Generic[Runner]):
    """Who runs what alone, in one worker."""

    def __init__(self) -> None:
        self._runners: dict[Entry, Runner | None] = {}
        self._idle: dict[Runner, tuple[str, asyncio.Future[str]]] = {}
        self._ran: Counter[Runner] = Counter()

    def ask(self, entry: Entry) -> None:
        """Have an entry run alone: by a child that waits for one, or by whoever is given it."""
        if entry in self._runners:
            return
        route, entry_id = entry
        idle = (runner for runner, (of, told) in self._idle.items() if of == route and not told.done())
        runner = next(idle, None)
        self._runners[entry] = runner
        if runner is not None:
            self._idle[runner][1].set_result(entry_id)

    @property
    def waiting(self) -> list[Entry]:
        """Entries that nobody has been given, the longest waiting first."""
        return [entry for entry, runner in self._runners.items() if runner is None]

    @property
    def busy(self) -> int:
        """How many children run one now; those that wait for another are not counted."""
        return len({runner for runner in self._runners.values() if runner is not None})

    def dismiss(self) -> None:
        """Let those end that wait for another entry: their place is wanted."""
        for _, told in self._idle.values():
            if not told.done():
                told.set_result("")

    def give(self, entry: Entry, runner: Runner) -> None:
        """Let this child run it."""
        self._runners[entry] = runner
        self._ran[runner] += 1

    async def next(self, runner: Runner, route: str) -> str:
        """Another entry of the route for a child that has run its own; empty: it is to end."""
        self._let_go(runner)
        if self._ran[runner] >= IN_TURN:
            return ""
        entry = next((entry for entry in self.waiting if entry[0] == route), None)
        if entry is not None:
            self.give(entry, runner)
            return entry[1]
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._idle[runner] = (route, told)
        try:
            async with asyncio.timeout(LINGERS):
                entry_id = await told
        except TimeoutError:
            return ""
        finally:
            del self._idle[runner]
        self._ran[runner] += bool(entry_id)
        return entry_id

    def ended(self, runner: Runner) -> None:
        """The child has ended: what it was given is not run by it any more."""
        self._let_go(runner)
        del self._ran[runner]

    def _let_go(self, runner: Runner) -> None:
        for entry in [entry for entry, by in self._runners.items() if by is runner]:
            del self._runners[entry]
