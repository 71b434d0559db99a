"""Waiting for runs to end: on a run's feed, never by asking again and again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.cli.directory import keys_of

if TYPE_CHECKING:
    from runtime.broker.client import Broker
    from runtime.broker.fleet import RouteEntry
    from shared_models.result import Published, RunRecord

LOOK_AGAIN = 10.0
"""Seconds after which the record is read again even if its feed is silent: a feed is bounded and may lose lines."""

FIRST_LOOK = 2.0
"""Seconds of silence after which it is asked for the first time whether anything runs the event at all."""

_ENDS = frozenset({"completed", "dead_lettered", "cancelled"})


class Deadline:
    """A moment to wait until; ``None`` seconds: for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self, at_most: float) -> float:
        """Seconds to wait in one go; 0 when the moment has passed."""
        return at_most if self._end is None else max(0.0, min(at_most, self._end - time.monotonic()))


@dataclass(frozen=True, slots=True)
class Target:
    """One run to wait for: an event on a route."""

    route: RouteEntry
    event_id: str


Silent = Callable[[Target], Awaitable[object]]
"""Is told of a run of which nothing was heard for a while."""


async def until_ended(broker: Broker, target: Target, deadline: Deadline, silent: Silent) -> RunRecord | None:
    """The run's record once it is final; None when the deadline passes first."""
    keys, after, patience = keys_of(target.route), "0-0", FIRST_LOOK
    while True:
        record = await broker.runs.get(keys, target.event_id)
        if record is not None and record.status.final:
            return record
        ended = False
        while not ended:
            if (left := deadline.left(patience)) <= 0:
                return None
            events = await broker.runs.feed(keys, target.event_id, after=after, block=left)
            if not events and deadline.left(patience) > 0:
                await silent(target)
            patience = LOOK_AGAIN
            after = events[-1].id if events else after
            ended = not events or any(event.type in _ENDS for event in events)


async def follow(
    broker: Broker,
    targets: Sequence[Target],
    *,
    readers: Callable[[str], Sequence[RouteEntry]],
    deadline: Deadline,
    seen: Callable[[RunRecord, bool], object],
    silent: Silent,
) -> list[Target]:
    """Wait for the runs and for all that grow from them, over routes; returns those that had not ended in time.

    ``readers`` names the routes of a stream. ``seen`` is told each ended run, parents first, and whether it is a last
    one: no route reads what it published.
    """
    queue, known, missing = deque(targets), set(targets), []
    while queue:
        target = queue.popleft()
        record = await until_ended(broker, target, deadline, silent)
        if record is None:
            missing.append(target)
            continue
        published = await _published(broker, target, record)
        grown = [Target(route, p.event_id) for p in published for route in readers(p.stream)]
        seen(record, not grown)
        queue.extend(t for t in grown if t not in known)
        known.update(grown)
    return missing


async def _published(broker: Broker, target: Target, record: RunRecord) -> list[Published]:
    """What grew from a run; of a duplicate, what grew from the event that it repeats."""
    if record.duplicate_of is None or record.published:
        return record.published
    first = await broker.runs.get(keys_of(target.route), record.duplicate_of)
    return first.published if first else []
