"""What both clients say and understand: requests, answers, errors, events, when to try again. No network."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from runtime.errors import GatewayError, GatewayUnavailable
from shared_models.result import RunRecord

AGAIN = frozenset({429, 502, 503, 504})
"""Statuses of a moment: the same request is sent again."""

LONGEST_PAUSE = 30.0
"""Seconds between two tries, however long a gateway asks for."""

SILENCE = 45.0
"""Seconds without a word after which a stream counts as broken: a gateway says something every 15."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """An event that is in its route's stream. ``duplicate``: it was accepted before."""

    event_id: str
    root_id: str
    route: str
    status_url: str
    events_url: str
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run. ``type`` is that of a line of its feed, or ``gap``: lines are lost. ``at`` is in ms."""

    type: str
    id: str | None
    event_id: str
    route: str
    at: int | None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None


def headers_of(api_key: str | None) -> dict[str, str]:
    """What every request carries."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def sending(
    route: str,
    payload: Mapping[str, Any] | str,
    *,
    session_id: str | None,
    tenant_id: str | None,
    key: str | None,
    stream: bool,
    callback: str | None,
) -> Ask:
    """An event. It always has a key, so that it may be sent again."""
    params = {"session_id": session_id, "tenant_id": tenant_id, "callback": callback}
    params["stream"] = "true" if stream else None
    text = isinstance(payload, str)
    kind = "text/plain; charset=utf-8" if text else "application/json"
    content = payload.encode() if isinstance(payload, str) else json.dumps(dict(payload)).encode()
    headers = {"Content-Type": kind, "Idempotency-Key": key or str(uuid.uuid4())}
    return Ask("POST", f"/v1/routes/{quote(route, safe='')}/events", _given(params), headers, content)


def getting(event_id: str, route: str | None) -> Ask:
    """A run."""
    return Ask("GET", _run(event_id), _given({"route": route}))


def cancelling(event_id: str, route: str | None) -> Ask:
    """The end of a run."""
    return Ask("POST", f"{_run(event_id)}/cancel", _given({"route": route}))


def listing(filters: Mapping[str, str | None], count: int, cursor: str | None) -> Ask:
    """A page of runs."""
    return Ask("GET", "/v1/runs", _given({**filters, "limit": str(min(count, 200)), "cursor": cursor}))


def following(event_id: str, route: str | None, *, lineage: bool, after: str | None) -> Ask:
    """A run's events after one of them."""
    params = _given({"route": route, "follow": "lineage" if lineage else None})
    return Ask("GET", f"{_run(event_id)}/events", params, _given({"Last-Event-ID": after}))


def accepted(body: Mapping[str, Any]) -> Accepted:
    """The answer to an event."""
    return Accepted(**{name: body[name] for name in Accepted.__slots__ if name in body})


def run(body: Mapping[str, Any]) -> RunRecord:
    """A run."""
    return RunRecord.model_validate(body)


def problem(response: httpx.Response) -> GatewayError:
    """The error that an answer, which was read, tells of."""
    try:
        body = response.json()
    except ValueError:
        body = {}
    told = body if isinstance(body, dict) else {}
    kind = GatewayUnavailable if response.status_code in AGAIN else GatewayError
    return kind(
        str(told.get("detail") or f"the gateway answered {response.status_code} {response.reason_phrase}"),
        status=response.status_code,
        code=str(told.get("code") or ""),
        retry_after=_seconds(response.headers.get("retry-after")),
    )


def unreachable(error: httpx.TransportError) -> GatewayUnavailable:
    """The error of a gateway that did not answer."""
    return GatewayUnavailable(f"the gateway cannot be reached: {error or type(error).__name__}")


def pause(tries: int, error: GatewayError | None = None) -> float:
    """Seconds before the next try: what the gateway asks for, or more each time."""
    if error is not None and error.retry_after is not None:
        return min(LONGEST_PAUSE, error.retry_after)
    return min(5.0, 0.1 * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0)  # noqa: S311  jitter, not a secret


class Reading:
    """Server-Sent Events from the lines of a response."""

    def __init__(self, after: str | None) -> None:
        self.after = after
        """The id of the last event."""
        self._ended = False
        self.heard = False
        """Something has come."""
        self._block: dict[str, str] = {}

    @property
    def ended(self) -> bool:
        """Whether all was told."""
        return self._ended

    def end(self) -> None:
        """All was told before."""
        self._ended = True

    def take(self, line: str) -> Event | None:
        """The event that a line completes, if it does."""
        self.heard = True
        if line:
            name, _, value = line.partition(":")
            if name:
                self._block[name] = value.removeprefix(" ")
            return None
        block, self._block = self._block, {}
        kind = block.get("event")
        if kind is None:
            return None
        self.after = block.get("id", self.after)
        if kind == "end":
            self._ended = True
        if kind in ("end", "unavailable"):
            return None
        data = json.loads(block.get("data") or "{}")
        about = (str(data.pop("event_id", "")), str(data.pop("route", "")), data.pop("at", None))
        return Event(kind, block.get("id"), *about, data)


def _run(event_id: str) -> str:
    return f"/v1/runs/{quote(event_id, safe='')}"


def _given(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None
