"""Callbacks: an outcome told over HTTP is an event of its own, on a stream of its own beside its route's.

It is published by the very write that records the outcome, and read by a route that every worker has by itself for
each route that has callbacks: gate, retries, dead letters and records are those of all routes. What delivers it is the
deliverer.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from runtime.broker.outcome import Publication
from runtime.registry.snapshot import Route, Snapshot
from runtime.telemetry.redact import mask_text
from runtime.worker.work import Work
from shared_models.codec import downstream_event_id, encode
from shared_models.dead_letter import DeadLetterSummary, ErrorInfo
from shared_models.envelope import EventEnvelope
from shared_models.names import callbacks_route, default_callbacks
from shared_models.result import RunRecord, RunResult, RunStatus
from shared_models.route import RetryPolicy, RouteSpec

TIMEOUT = 900.0
"""Seconds of a delivery's run: more than any that the deliverer allows itself."""

MAX_RESULT = 1_000_000
"""Characters of a result's JSON that a callback takes along; a larger one is to be fetched from the run."""

_RULES = {RunStatus.COMPLETED: -3, RunStatus.DEAD_LETTERED: -4}
"""The rule numbers, in a callback's event id."""


def with_callbacks(snapshot: Snapshot) -> Snapshot:
    """The snapshot, and a route for the callbacks of each route that has some."""
    made = {}
    for route in snapshot.routes.values():
        if route.spec.callback is not None and route.callbacks_of is None:
            built_in = _built_in(route)
            made[built_in.name] = built_in
    if not made:
        return snapshot
    return Snapshot(MappingProxyType({**snapshot.routes, **made}), snapshot.problems, snapshot.disabled)


def allowed(spec: RouteSpec) -> bool:
    """Whether an event of the route may name a URL of its own."""
    return spec.callback is not None and spec.callback.allow_request


def completed(work: Work, result: RunResult, now: int) -> tuple[Publication, ...]:
    """What tells of a run that has succeeded; nothing where nobody is to be told."""
    return _told(work, RunStatus.COMPLETED, now, result=result)


def dead_lettered(work: Work, error: ErrorInfo, now: int) -> tuple[Publication, ...]:
    """What tells of an event that has failed for good."""
    summary = DeadLetterSummary(
        code=error.code,
        reason=mask_text(error.message),
        component_id=error.component_id,
        attempts=work.attempts,
    )
    return _told(work, RunStatus.DEAD_LETTERED, now, dead_letter=summary)


def _built_in(route: Route) -> Route:
    callback = route.spec.callback
    assert callback is not None  # noqa: S101  the caller has looked
    spec = RouteSpec(
        retry=RetryPolicy(delays=callback.delays, max_attempts=len(callback.delays) + 1),
        concurrency=callback.concurrency,
        timeout=TIMEOUT,
        callback=callback,
    )
    return Route(
        name=callbacks_route(route.name),
        spec=spec.model_copy(update={"stream": default_callbacks(route.stream, route.group)}),
        version=hashlib.sha256(callback.model_dump_json().encode()).hexdigest(),
        spec_version="",
        export=MappingProxyType({}),
        path=route.path,
        callbacks_of=route.name,
    )


def _told(work: Work, status: RunStatus, now: int, **outcome: Any) -> tuple[Publication, ...]:
    route, envelope = work.active.route, work.envelope
    callback = route.spec.callback
    if callback is None or envelope is None or route.callbacks_of or status.value not in callback.events:
        return ()
    url = envelope.callback_url if envelope.callback_url and callback.allow_request else callback.url
    if url is None:
        return ()
    data = _record(work, envelope, status, now, **outcome).model_dump(mode="json", exclude_none=True)
    if "result" in data and len(json.dumps(data["result"])) > MAX_RESULT:
        del data["result"]
        data["result_omitted"] = True
    message = {
        "type": f"run.{status.value}",
        "timestamp": datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds"),
        "data": data,
    }
    # A requeued event has another entry, and another outcome to tell.
    event_id = downstream_event_id(f"{envelope.event_id}\n{work.claim.entry_id}", _RULES[status], 0)
    told = EventEnvelope(
        event_id=event_id,
        root_id=envelope.root_id,
        parent_id=envelope.event_id,
        step_index=envelope.step_index + 1,
        event_type="headrace.callback",
        source=f"headrace:{route.name}",
        tenant_id=envelope.tenant_id,
        idempotency_key=event_id,
        session_id=envelope.session_id,
        timestamp=now,
        traceparent=envelope.traceparent,
        tracestate=envelope.tracestate,
    )
    # A component may have said half of a character, which no reader would take.
    text = json.dumps({"url": url, "message": message}, ensure_ascii=False).encode("utf-8", "replace").decode()
    return (Publication(default_callbacks(route.stream, route.group), event_id, encode(told, payload=text)),)


def _record(work: Work, envelope: EventEnvelope, status: RunStatus, now: int, **outcome: Any) -> RunRecord:
    """The run as its settlement leaves it, as far as its worker knows."""
    return RunRecord(
        event_id=envelope.event_id,
        root_id=envelope.root_id,
        parent_id=envelope.parent_id,
        step_index=envelope.step_index,
        route=work.active.route.name,
        stream=work.claim.keys.stream,
        status=status,
        attempts=work.attempts,
        session_id=envelope.session_id,
        tenant_id=envelope.tenant_id,
        idempotency_key=work.claim.key,
        version=work.active.route.version,
        ended_at=now,
        **outcome,
    )
