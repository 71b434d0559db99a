"""The loop clock: how long an event loop was held up, and by whose code, so that nobody pays for a neighbour's stretch.

A loop turns when it comes back to its selector. What lies between two visits is one stretch, in which nothing else on
the loop could go on; the watchdog's thread looks whose task is at work in the longer ones. The loop's own timers cannot
tell a run that took its time from one that was never given it: this clock can.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from runtime.worker.board import boot_time

NOTABLE = 0.1
"""Seconds from which a stretch counts: shorter ones are the ordinary turns of a busy loop."""

UNKNOWN_MOST = 60.0
"""Seconds that a run is given at most for stretches in which nobody was seen: its own thread may have caused them."""

REMEMBERED = 10_000
"""Stretches that are kept."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A time in which the loop did not turn (boot clock), and how often whose code was seen in it.

    The empty token is code that is no run's. Nobody at all was seen in a stretch between two looks, or where a thread
    held the interpreter itself, or the process was stopped.
    """

    start: float
    end: float
    seen: Counter[str]

    def of_others(self, token: str) -> float:
        """The share in which others were at work; of a stretch in which somebody was seen."""
        return 1.0 - self.seen[token] / self.seen.total()


class LoopClock:
    """The clock of one event loop, made by ``new_loop``. For any other loop it says that nothing held it up."""

    def __init__(self, time: Callable[[], float] = boot_time) -> None:
        self._time = time
        self._stretches: deque[_Stretch] = deque(maxlen=REMEMBERED)
        self._seen: Counter[str] = Counter()
        self._turned: float | None = None
        self._lock = threading.RLock()  # a signal's handler may ask while this thread tells

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop that this clock is about."""
        return asyncio.SelectorEventLoop(_Turns(self))

    def lag_of(self, token: str, since: float) -> float:
        """Seconds since ``since`` (boot clock) in which the loop was held up by others than the run ``token``.

        From any thread. A run that began at ``since`` has had ``now - since - lag`` seconds of its own.
        """
        others = unknown = 0.0
        with self._lock:
            for stretch in chain(self._under_way(), reversed(self._stretches)):
                if stretch.end <= since:
                    break
                held = stretch.end - max(stretch.start, since)
                if stretch.seen:
                    others += held * stretch.of_others(token)
                else:
                    unknown += held
        return others + min(unknown, UNKNOWN_MOST)

    def _under_way(self) -> Iterator[_Stretch]:
        """The present stretch, once it counts."""
        turned = self._turned  # a short one may end meanwhile: that is not told under the lock
        if turned is not None and (now := self._time()) - turned >= NOTABLE:
            yield _Stretch(turned, now, self._seen)

    # --- told by the selector and the watchdog ------------------------------------------------------------------------

    def turns(self) -> None:
        """The loop is back at its selector. On the loop."""
        if self._turned is None:
            return
        now = self._time()
        if now - self._turned >= NOTABLE:
            with self._lock:
                self._stretches.append(_Stretch(self._turned, now, self._seen))
                self._turned, self._seen = None, Counter()
        self._turned = None

    def works(self, late: float) -> None:
        """The selector has returned, ``late`` seconds after its timeout: callbacks run from now on. On the loop."""
        now = self._time()
        if late >= NOTABLE:  # no code of the loop's: a thread held the interpreter, or the process was stopped
            with self._lock:
                self._stretches.append(_Stretch(now - late, now, Counter()))
        if self._seen:
            self._seen = Counter()
        self._turned = now

    def sees(self, token: str) -> None:
        """At this moment a task of this run is at work (empty: none of a run). From the watchdog's thread."""
        with self._lock:
            if self._turned is not None:
                self._seen[token] += 1


class _Turns(selectors.DefaultSelector):
    """The system's selector, that tells a clock when the loop comes and goes."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the system's."""
        self._clock.turns()
        before = boot_time()
        ready = super().select(timeout)
        late = 0.0 if timeout is None else boot_time() - before - max(0.0, timeout)
        self._clock.works(late)
        return ready
