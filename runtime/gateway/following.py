"""Following many runs at once: one blocking read for all streams that this gateway tells (on a cluster, one a slot).

A subscription is told new lines of one feed. Where it falls behind (too many lines at once, a client that reads slowly)
it is told so, and reads on from Redis where it was: nothing is kept without bound, nothing is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import TracebackType

from runtime.broker.feeds import FOLLOWED, Feeds, order
from runtime.broker.keys import RouteKeys
from runtime.errors import BrokerError
from runtime.telemetry import logs
from shared_models.result import RunEvent

BLOCK = 3.0
"""Seconds of one blocking read."""

GATHER = 0.01
"""Seconds between two reads: what is told in between is one reply, however many streams are open."""

LOST = 5.0
"""Seconds without Redis after which those who follow are sent away, to come again."""

MOST = 1000
"""Lines kept for one subscription that does not take them."""

_LOG = logs.get_logger("headrace.gateway")


class Subscription:
    """New lines of one feed. ``wake`` is set when there is something to see."""

    def __init__(self, part: _Part, keys: RouteKeys, event_id: str, after: str, *, wake: asyncio.Event) -> None:
        self.keys = keys
        self.event_id = event_id
        self.feed = keys.feed(event_id)
        self.after = after
        self.wake = wake
        self.behind = False
        """Lines were left out: read on from Redis."""
        self.over = ""
        """Not empty: nothing more will come, and why: ``ending`` or ``lost``."""
        self._part = part
        self._lines: deque[RunEvent] = deque()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def take(self) -> list[RunEvent]:
        """The lines that have come, each once."""
        lines = [line for line in self._lines if order(line.id) > order(self.after)]
        self._lines.clear()
        if lines:
            self.after = lines[-1].id
        return lines

    def catch_up(self, after: str) -> None:
        """All up to an id was read from Redis."""
        self.after = after

    def give(self, lines: tuple[RunEvent, ...], *, full: bool) -> None:
        """New lines; ``full``: there may be more than these."""
        if full or len(self._lines) + len(lines) > MOST:
            self._lines.clear()
            self.behind = True
        else:
            self._lines += lines
        self.wake.set()

    def end(self, why: str) -> None:
        """Nothing more comes."""
        self.over = self.over or why
        self.wake.set()

    def close(self) -> None:
        """Follow it no more."""
        self._part.leave(self)


class Following:
    """All subscriptions of this gateway. Belongs to one event loop."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._parts: list[_Part] = []
        self._ending = False

    def subscribe(
        self, keys: RouteKeys, event_id: str, after: str, *, wake: asyncio.Event, watch: bool = True
    ) -> Subscription:
        """Follow a feed after an id. ``watch``: have the run told of, so that it tells its components."""
        feed = keys.feed(event_id)
        part = next((part for part in self._parts if part.together(feed)), None)
        if part is None:
            part = _Part(self._feeds, feed)
            self._parts.append(part)
        made = Subscription(part, keys, event_id, after, wake=wake)
        if self._ending:
            made.end("ending")
        else:
            part.join(made, watch=watch)
        return made

    @property
    def count(self) -> int:
        """Feeds that are followed."""
        return sum(len(part.feeds) for part in self._parts)

    def end(self) -> None:
        """Send everybody away: the process is ending."""
        self._ending = True
        for part in self._parts:
            part.end("ending")

    async def close(self) -> None:
        """End the reads."""
        self.end()
        for part in self._parts:
            await part.close()


class _Part:
    """The feeds that one read may have."""

    def __init__(self, source: Feeds, feed: str) -> None:
        self._source = source
        self._sample = feed
        self.feeds: dict[str, set[Subscription]] = {}
        self._tails: dict[str, str] = {}
        self._watched: dict[str, tuple[RouteKeys, str]] = {}
        self._untold: set[str] = set()
        self._told = 0.0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def together(self, feed: str) -> bool:
        """Whether a feed may be read with these."""
        return self._source.together(self._sample, feed)

    def join(self, one: Subscription, *, watch: bool) -> None:
        """Tell a subscription from now on."""
        self.feeds.setdefault(one.feed, set()).add(one)
        # Who is further on already leaves out what comes again.
        self._tails[one.feed] = min(self._tails.get(one.feed, one.after), one.after, key=order)
        if watch and one.feed not in self._watched:
            self._watched[one.feed] = (one.keys, one.event_id)
            self._untold.add(one.feed)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="gateway:following")

    def leave(self, one: Subscription) -> None:
        """Tell it nothing more."""
        them = self.feeds.get(one.feed, set())
        them.discard(one)
        if not them:
            self.feeds.pop(one.feed, None)
            self._tails.pop(one.feed, None)
            self._watched.pop(one.feed, None)
            self._untold.discard(one.feed)
            if not self.feeds:
                self._changed.set()

    def end(self, why: str) -> None:
        """Send all away."""
        for them in self.feeds.values():
            for one in them:
                one.end(why)

    async def close(self) -> None:
        """End the read."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        good, failures = time.monotonic(), 0
        while self.feeds:
            try:
                await self._tell_followed()
                await self._read()
                good, failures = time.monotonic(), 0
                await asyncio.sleep(GATHER)
            except BrokerError as error:
                failures += 1
                if failures == 1:
                    _LOG.warning("redis.failed", step="follow", code=error.code, error=error.message)
                if time.monotonic() - good > LOST:
                    self.end("lost")
                await asyncio.sleep(min(1.0, 0.05 * 2 ** min(failures, 6)))

    async def _tell_followed(self) -> None:
        """Renew, for all runs, that they are followed; for new ones at once."""
        all_of_them = time.monotonic() - self._told > FOLLOWED / 3
        wanted = list(self._watched) if all_of_them else list(self._untold)
        if wanted:
            await self._source.follow([self._watched[feed] for feed in wanted])
            self._untold.difference_update(wanted)
        if all_of_them:
            self._told = time.monotonic()

    async def _read(self) -> None:
        self._changed.clear()
        tails = dict(self._tails)
        reading = asyncio.create_task(self._source.read(self, tails, seconds=BLOCK), name="gateway:read")
        changed = asyncio.create_task(self._changed.wait(), name="gateway:changed")
        try:
            await asyncio.wait({reading, changed}, return_when=asyncio.FIRST_COMPLETED)
            for _ in range(20):
                if reading.done():
                    break
                await self._source.unblock(self)
                await asyncio.wait({reading}, timeout=0.05)
        finally:
            for task in (reading, changed):
                if not task.done():
                    task.cancel()
            await asyncio.wait({reading, changed})
        if reading.cancelled():
            return
        for feed, news in reading.result().items():
            if self._tails.get(feed) == tails[feed]:
                self._tails[feed] = news.last
            for one in self.feeds.get(feed, ()):
                one.give(news.lines, full=news.full)
