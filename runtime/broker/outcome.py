"""What is decided about a delivery. A decision is a value; settle is the one write that records it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from shared_models.chat import ChatCommit
from shared_models.dead_letter import ErrorInfo
from shared_models.result import Pause, RunResult


@dataclass(frozen=True, slots=True)
class Publication:
    """One event to publish downstream: the stream, its flat fields, its deterministic event id.

    ``keep``, where not None, is how many entries the stream keeps at least. ``reply``: the stream is one of many, for
    one answer or a few, and is gone some time after its last entry (``RetentionSettings.results``). A stream that any
    consumer group reads is never trimmed and never expires, whatever these say.
    """

    stream: str
    event_id: str
    fields: tuple[tuple[str, str], ...]
    keep: int | None = None
    reply: bool = False


@dataclass(frozen=True, slots=True)
class Completed:
    """The run succeeded: record the result, commit its chat messages, publish downstream."""

    result: RunResult
    publications: tuple[Publication, ...] = ()
    chat: tuple[ChatCommit, ...] = ()


@dataclass(frozen=True, slots=True)
class Retried:
    """The attempt failed: try again in ``delay`` seconds. It keeps its charge."""

    delay: float
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class Released:
    """The attempt is given back without a charge, to be taken after ``delay`` seconds (drain; a blocked route).

    ``blocks``: what ``error`` tells of stops all events of the route.
    """

    error: ErrorInfo | None = None
    delay: float = 0.0
    blocks: bool = True


@dataclass(frozen=True, slots=True)
class Suspended:
    """The run waits for a person, ``wait`` seconds at most, and goes on from its checkpoint. Nothing is charged."""

    pause: Pause
    checkpoint: bytes
    wait: float


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """The event has failed for good. ``publications`` go to the event's reply_to, if it has one."""

    error: ErrorInfo
    result: RunResult | None = None
    """The result of a run whose outcome could not be published."""
    publications: tuple[Publication, ...] = ()


Outcome = Completed | Retried | Released | Suspended | DeadLettered


class Settled(Enum):
    """What settle says. LOST and ALREADY: write nothing more for this entry."""

    DONE = 1
    ALREADY = 2
    CANCELLED = 3
    LOST = -2
    ENTRY_GONE = -4


@dataclass(frozen=True, slots=True)
class RunMeta:
    """What a run record tells about the event beside its state; written at begin."""

    route: str
    version: str
    root_id: str
    parent_id: str | None = None
    step_index: int = 0
    session_id: str | None = None
    tenant_id: str | None = None
    key: str | None = None
    digest: str | None = None
    """SHA-256 of the request that brought the event, where a repeat of it is to be told from another request."""
