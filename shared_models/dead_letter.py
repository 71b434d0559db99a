"""What is kept of an event that could not be processed."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ErrorInfo(BaseModel):
    """One failure, told for people and machines. Never holds a pickled exception.

    ``provider_status`` is the HTTP status that a model provider or another service answered with; ``retry_after`` is
    in seconds. ``component_id`` and ``component_name`` are the export's own.
    """

    model_config = ConfigDict(frozen=True)

    code: str
    message: str
    exception_type: str | None = None
    component_id: str | None = None
    component_name: str | None = None
    provider_status: int | None = None
    retry_after: float | None = None
    retryable: bool = False
    traceback: str | None = None


class DeadLetterSummary(BaseModel):
    """What a run record tells of its dead letter."""

    model_config = ConfigDict(frozen=True)

    id: str | None = None
    code: str
    reason: str
    component_id: str | None = None
    attempts: int = 0


class DeadLetter(BaseModel):
    """One entry of a dead-letter stream. Times in ms since the epoch.

    ``fields`` are the original entry's fields; where the bytes were not UTF-8 they are shown with backslash
    escapes, and the stream keeps them byte for byte.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    route: str
    stream: str
    entry_id: str
    event_id: str
    root_id: str = ""
    code: str
    reason: str
    error: ErrorInfo
    attempts: int = 0
    first_at: int | None = None
    died_at: int = 0
    version: str | None = None
    worker: str | None = None
    fields: dict[str, str] = Field(default_factory=dict)
