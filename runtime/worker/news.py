"""News: one blocking read over all quiet streams, which goes on while others are fetched from. It hands out nothing."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from runtime.broker.reader import Reader
from runtime.worker.lanes import Lane
from shared_models.errors import HeadraceError

BLOCK = 5.0
"""Seconds that one blocking read lasts at most."""

MAX_BACKOFF = 2.0
"""Seconds between two reads that fail, as they can where all else goes well: no more clients are let in, say."""


class News:
    """Listens for one consumer. Times are of the monotonic clock."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._watched: frozenset[str] = frozenset()
        self._failures = 0
        self.coming: asyncio.Task[set[str]] | None = None
        """The read that is under way."""
        self.deaf_until = -math.inf
        """When to listen again, after a read that failed."""

    async def listen(self, lanes: Sequence[Lane]) -> None:
        """Have a read over the streams of these lanes under way, but not of those that are blocked."""
        if time.monotonic() < self.deaf_until:
            return
        streams = frozenset(lane.keys.stream for lane in lanes if not lane.blocked)
        if self.coming is not None and not self.coming.done() and not streams <= self._watched:
            await self.stop()
        if self.coming is None and streams:
            tails: dict[str, str] = {}
            for lane in lanes:
                stream = lane.keys.stream
                if stream in streams:
                    tails[stream] = min(tails[stream], lane.tail, key=_order) if stream in tails else lane.tail
            self._watched = streams
            self.coming = asyncio.create_task(self._reader.wait(tails, BLOCK), name="consumer:news")

    def heard(self) -> AbstractSet[str]:
        """The streams that have something new, once the read has ended; all that were read, where it failed."""
        if self.coming is None or not self.coming.done():
            return frozenset()
        ended, self.coming = self.coming, None
        error = ended.exception()
        if error is None:
            self._failures = 0
            return ended.result()
        if not isinstance(error, HeadraceError):
            raise error
        self._failures += 1
        self.deaf_until = time.monotonic() + min(MAX_BACKOFF, 0.05 * 2 ** min(self._failures, 8))
        return self._watched

    async def stop(self) -> None:
        """End the read without dropping its connection."""
        coming, self.coming = self.coming, None
        if coming is None:
            return
        if not coming.done():
            try:
                await self._reader.unblock()
            except HeadraceError:
                coming.cancel()
        await asyncio.wait({coming}, timeout=1.0)
        if not coming.done():
            coming.cancel()
            await asyncio.wait({coming})
        if not coming.cancelled():
            coming.exception()


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)
