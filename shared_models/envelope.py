"""The envelope of one event: what a producer says about it, with every default filled in."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = "1"


class EventEnvelope(BaseModel):
    """One event, decoded. Immutable; times are milliseconds since the Unix epoch.

    ``event_id`` addresses the run. ``root_id`` is shared by all runs that grew from one first event, ``parent_id`` is
    the event whose outcome this one is, ``step_index`` counts the steps from the root (0). ``idempotency_key`` decides
    what counts as a duplicate; it is the event id unless the producer or the route says otherwise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    event_id: str
    root_id: str
    parent_id: str | None = None
    step_index: int = Field(default=0, ge=0)
    event_type: str = ""
    source: str = ""
    tenant_id: str | None = None
    idempotency_key: str
    session_id: str | None = None
    timestamp: int = Field(default=0, ge=0)
    attempt: int = Field(default=1, ge=1)
    expires_at: int | None = None
    reply_to: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    tokens: bool = False
    """Whether the models' tokens are told in the run's feed, where the flow can stream them."""
    callback_url: str | None = None
    """Where the outcome is told, instead of the route's own callback; only where the route allows it."""
    payload: dict[str, Any] = Field(default_factory=dict)
    payload_ref: str | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    """What the producer said beside payload and control fields: a CloudEvent's subject and extensions, a change's key,
    further fields. For expressions (``event.attributes.subject``); not sent downstream."""
