"""What the API answers: its documents, and where each thing is."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, Field

from runtime.gateway.accepting import Accepted
from shared_models.result import RunRecord


class EventAccepted(BaseModel):
    """An event is in the stream, and can be followed."""

    event_id: str
    root_id: str
    route: str
    status_url: str = Field(description="Where the run's status is.")
    events_url: str = Field(description="Where the run's progress is told (Server-Sent Events).")
    duplicate: bool = Field(default=False, description="It was accepted before; the ids are those of then.")


class EventsAccepted(BaseModel):
    """A batch is in the stream, in order."""

    events: list[EventAccepted]


class RunList(BaseModel):
    """Runs, those that began last first."""

    runs: list[dict[str, Any]]
    next: str | None = Field(default=None, description="The cursor of the next page; null: there is none.")


class RunCancelled(BaseModel):
    """What became of a request to cancel."""

    event_id: str
    route: str
    status: Literal["cancelled", "asked"] = Field(description="`asked`: it runs, and is told to stop.")


def status_url(event_id: str) -> str:
    """Where a run's status is."""
    return f"/v1/runs/{quote(event_id, safe='')}"


def accepted(event: Accepted, route: str) -> EventAccepted:
    """The answer for an accepted event."""
    url = status_url(event.event_id)
    return EventAccepted(
        event_id=event.event_id,
        root_id=event.root_id,
        route=route,
        status_url=url,
        events_url=f"{url}/events",
        duplicate=not event.new,
    )


def run_json(record: RunRecord) -> dict[str, Any]:
    """A run as the API tells it."""
    url = status_url(record.event_id)
    links = {"self": url, "events": f"{url}/events", "cancel": f"{url}/cancel"}
    if record.pause is not None:
        links["resume"] = f"{url}/resume"
    return {**record.model_dump(mode="json", exclude_none=True), "timings": _timings(record), "links": links}


def grown_json(record: RunRecord) -> dict[str, Any]:
    """A run of a lineage: enough to know it by; the rest is where ``self`` leads."""
    told = record.model_dump(
        mode="json", exclude_none=True, include={"event_id", "route", "status", "parent_id", "step_index", "attempts"}
    )
    return {**told, "timings": _timings(record), "links": {"self": status_url(record.event_id)}}


def _timings(record: RunRecord) -> dict[str, int]:
    """How long it took, in ms, as far as it is known; ``running`` is the last attempt."""
    spans = {
        "queued_ms": (record.queued_at, record.started_at),
        "running_ms": (record.started_at, record.ended_at),
        "total_ms": (record.queued_at, record.ended_at),
    }
    return {name: max(0, end - begin) for name, (begin, end) in spans.items() if begin is not None and end is not None}
