"""What became of an event: the flow's outputs, and the record of its run."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from shared_models.dead_letter import DeadLetterSummary


class OutputKind(StrEnum):
    """What shape an output's ``data`` has."""

    MESSAGE = "message"
    DATA = "data"
    TABLE = "table"
    LIST = "list"
    ERROR = "error"


class Output(BaseModel):
    """One output of a flow: strict JSON, whatever the component returned.

    ``id``, ``name`` and ``type`` are the component's id, display name and class in the export; ``output`` names the
    component's own output, since a component that ends a flow may have several. ``text`` is the output as text where it
    has one. ``data``: for a message ``{sender, session_id, files, usage, ...}``, for data a JSON object, for a table
    ``{"columns": [...], "rows": [{...}]}``, for a list its items.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    type: str
    output: str = ""
    kind: OutputKind
    text: str | None = None
    data: Any = None


class RunResult(BaseModel):
    """A completed run's result: the primary text (the first text output in the file's order) and every output."""

    model_config = ConfigDict(frozen=True)

    text: str | None = None
    outputs: list[Output] = Field(default_factory=list)


class RunStatus(StrEnum):
    """Where a run stands. waiting: for a person. completed, dead_lettered and cancelled are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DELAYED = "delayed"
    WAITING = "waiting"
    COMPLETED = "completed"
    DEAD_LETTERED = "dead_lettered"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the run has ended."""
        return self in (RunStatus.COMPLETED, RunStatus.DEAD_LETTERED, RunStatus.CANCELLED)


class Published(BaseModel):
    """One downstream event of a run."""

    model_config = ConfigDict(frozen=True)

    stream: str
    event_id: str


class PauseOption(BaseModel):
    """One answer that a person may give: the action's id, and how it is called."""

    model_config = ConfigDict(frozen=True)

    action_id: str
    label: str = ""


class Pause(BaseModel):
    """What a run asks a person.

    ``request_id`` names this question among those of the run; ``kind`` is ``node_input`` (a Human Input) or
    ``tool_approval`` (an agent's tool). ``allowed`` are the actions that a decision may name; ``calls`` are the tool
    calls to approve. At ``timeout_at`` (ms since the epoch) the flow goes on with ``fallback``, or, where it has none,
    the event is dead-lettered.
    """

    model_config = ConfigDict(frozen=True)

    request_id: str
    kind: str = ""
    prompt: str = ""
    options: list[PauseOption] = Field(default_factory=list)
    allowed: list[str] = Field(default_factory=list)
    calls: list[Any] = Field(default_factory=list)
    fallback: str | None = None
    timeout_at: int | None = None


class Decision(BaseModel):
    """A person's answer: the action, and what the action takes (an edited call's ``args``, a ``message``)."""

    model_config = ConfigDict(frozen=True)

    action_id: str
    values: dict[str, Any] = Field(default_factory=dict)


class RunRecord(BaseModel):
    """The life of one event over its attempts, as operators and clients see it. Times in ms since the epoch."""

    model_config = ConfigDict(frozen=True)

    event_id: str
    root_id: str = ""
    parent_id: str | None = None
    step_index: int = 0
    route: str
    stream: str
    entry_id: str | None = None
    status: RunStatus
    attempts: int = 0
    session_id: str | None = None
    tenant_id: str | None = None
    idempotency_key: str | None = None
    version: str | None = None
    worker: str | None = None
    queued_at: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    due_at: int | None = None
    last_error: str | None = None
    duplicate_of: str | None = None
    pause: Pause | None = None
    published: list[Published] = Field(default_factory=list)
    result: RunResult | None = None
    dead_letter: DeadLetterSummary | None = None


class RunEventType(StrEnum):
    """What a line of a run's feed tells."""

    QUEUED = "queued"
    STARTED = "started"
    COMPONENT_STARTED = "component_started"
    COMPONENT_ENDED = "component_ended"
    COMPONENT_FAILED = "component_failed"
    TOKEN = "token"  # noqa: S105  a piece of a model's answer
    MESSAGE = "message"
    WAITING = "waiting"
    RESUMED = "resumed"
    GAP = "gap"
    """Lines are lost before the next one."""
    RETRY = "retry"
    RELEASED = "released"
    PUBLISHED = "published"
    COMPLETED = "completed"
    DEAD_LETTERED = "dead_lettered"
    CANCELLED = "cancelled"


class RunEvent(BaseModel):
    """One line of a run's feed. ``id`` is the feed's stream id, so that a reader can resume after it."""

    model_config = ConfigDict(frozen=True)

    id: str
    type: RunEventType
    at: int
    data: dict[str, Any] = Field(default_factory=dict)
