"""One handing of an entry to this worker process."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Delivery:
    """An entry as it was read, undecoded: field names and values are bytes, in the producer's order.

    ``probe`` says that the route is blocked and this is the one entry that tries whether it still is.
    """

    entry_id: str
    fields: tuple[tuple[bytes, bytes], ...]
    probe: bool = False


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one look at a stream brought.

    ``more``: entries are left that could be read at once, or may be, after as many as were asked for. ``tail``: the id
    after which anything new is new.
    ``due_in``: ms until the next parked entry is due, if any; no date, for clocks differ. ``blocked``: the route is
    blocked.
    """

    deliveries: tuple[Delivery, ...]
    more: bool
    tail: str
    due_in: int | None
    blocked: bool


class Verdict(Enum):
    """What begin says about an entry."""

    RUN = 1
    OVER = 2
    STAGED = 3
    ENDED = 4
    WAIT = 5
    CANCELLED = 6
    BLOCKED = 7
    ALONE = 8
    NOT_MINE = 0
    NO_LEASE = -1


@dataclass(frozen=True, slots=True)
class Grant:
    """begin's answer.

    RUN: execute; ``attempts`` counts this one; ``followed``: somebody follows the run. Of a run that waited for a
    person, ``pause`` is the request's id and ``decision`` the decision (JSON), empty if the time was up.
    OVER: the attempts are used up (its workers died): dead-letter it, do not run. STAGED: publish the stored outcome.
    ENDED: a duplicate of an ended event, dropped; ``state`` and ``event_id`` say which. WAIT, BLOCKED: parked;
    ``holder`` and ``token`` name who runs it, ``waits`` is how often it has been put off. CANCELLED: dropped.
    ALONE: parked; a worker died while it ran this, so it runs next in a process of its own (begin with ``alone``).
    NOT_MINE: forget it. NO_LEASE: this worker must renew first.
    """

    verdict: Verdict
    token: str
    attempts: int = 0
    state: str = ""
    event_id: str = ""
    entry_id: str = ""
    holder: str = ""
    waits: int = 0
    pause: str = ""
    decision: str = ""
    followed: bool = False
