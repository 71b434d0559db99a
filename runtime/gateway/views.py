"""What the API answers: its documents, and where each thing is."""

from __future__ import annotations

from typing import Any
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
    return {**record.model_dump(mode="json", exclude_none=True), "links": links}
