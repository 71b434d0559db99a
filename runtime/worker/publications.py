"""From a completed run to the events that are published downstream. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from runtime.broker.outcome import Publication
from runtime.expressions import ExpressionFailed, Scope
from runtime.registry.snapshot import Route
from shared_models.codec import downstream_event_id, encode
from shared_models.dead_letter import ErrorInfo
from shared_models.envelope import EventEnvelope
from shared_models.result import RunResult

RESULTS_RULE = -1
"""The rule number, in a downstream event's id, of the route's results stream."""

REPLY_RULE = -2
"""The rule number of an event's own reply_to."""

KEEP = 10_000
"""Entries that an event's reply stream keeps, if no consumer group reads it. A rule's target is never trimmed: the
route that is to read it may not be deployed yet."""


def completed(
    route: Route, envelope: EventEnvelope, result: RunResult, now: int, *, read: Container[str] = ()
) -> tuple[Publication, ...]:
    """Every matching rule's event; the results stream's where none matches; the reply_to's where the event has one.

    ``read`` are streams that routes read, which nothing may trim. Raises ExpressionFailed naming the rule whose
    expression cannot be evaluated.
    """
    if route.callbacks_of:  # what a callback comes to is told by its record, and by its dead letter
        return ()
    rules = route.spec.publish
    scope = scope_of(envelope).with_variable("output", _document(route, result)) if rules else Scope({})
    default = _default_payload(route, envelope, result)
    made = []
    for number, rule in enumerate(rules):
        where = f"route {route.name}, publish[{number}]"
        if rule.when is None or scope.holds(rule.when, where=f"{where}.when"):
            payload = default if rule.payload is None else _payload(scope, rule.payload, f"{where}.payload")
            made.append(_publication(route, envelope, payload, now, to=rule.to, rule=number))
    if not made:
        keep = None if route.results in read else route.spec.results.keep
        made.append(_publication(route, envelope, default, now, to=route.results, rule=RESULTS_RULE, keep=keep))
    if envelope.reply_to:
        made.append(_reply(route, envelope, default, now, read))
    return tuple(made)


def dead_lettered(
    route: Route, envelope: EventEnvelope, error: ErrorInfo, now: int, *, read: Container[str] = ()
) -> tuple[Publication, ...]:
    """What the event's reply_to is told of its end; nothing where it has none."""
    if not envelope.reply_to or route.callbacks_of:
        return ()
    payload = {
        "error": error.model_dump(mode="json", exclude={"traceback", "retry_after"}),
        "flow": route.name,
        **_context(envelope),
    }
    return (_reply(route, envelope, payload, now, read),)


def scope_of(envelope: EventEnvelope) -> Scope:
    """The variables of an event's expressions before the run."""
    event = envelope.model_dump(exclude={"payload"})
    return Scope({"event": event, "payload": dict(envelope.payload)})


def _document(route: Route, result: RunResult) -> dict[str, Any]:
    uses_output = any(rule.when or rule.payload for rule in route.spec.publish)
    return result.model_dump(mode="json") if uses_output else {}


def _default_payload(route: Route, envelope: EventEnvelope, result: RunResult) -> dict[str, Any]:
    return {
        "input_value": result.text if result.text is not None else "",
        "outputs": [output.model_dump(mode="json") for output in result.outputs],
        "flow": route.name,
        **_context(envelope),
    }


def _context(envelope: EventEnvelope) -> dict[str, Any]:
    # A producer's own ids: they come back as they were sent, over all steps.
    return {"context": envelope.payload["context"]} if "context" in envelope.payload else {}


def _payload(scope: Scope, source: str, where: str) -> dict[str, Any]:
    value = scope.evaluate(source, where=where)
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, str):
        return {"input_value": value}
    raise ExpressionFailed(f"{where}: `{source}` gave {type(value).__name__}; a payload is a map or a text")


def _reply(
    route: Route, envelope: EventEnvelope, payload: dict[str, Any], now: int, read: Container[str]
) -> Publication:
    to = envelope.reply_to or ""
    told = _publication(route, envelope, payload, now, to=to, rule=REPLY_RULE)
    return told if to in read else replace(told, keep=KEEP, reply=True)


def _publication(
    route: Route,
    parent: EventEnvelope,
    payload: dict[str, Any],
    now: int,
    *,
    to: str,
    rule: int,
    keep: int | None = None,
) -> Publication:
    event_id = downstream_event_id(parent.event_id, rule, 0)
    envelope = EventEnvelope(
        event_id=event_id,
        root_id=parent.root_id,
        parent_id=parent.event_id,
        step_index=parent.step_index + 1,
        event_type="headrace.outcome",
        source=f"headrace:{route.name}",
        tenant_id=parent.tenant_id,
        idempotency_key=event_id,
        session_id=parent.session_id,
        timestamp=now,
        traceparent=parent.traceparent,
        tracestate=parent.tracestate,
        tokens=parent.tokens,
        payload=payload,
    )
    return Publication(stream=to, event_id=event_id, fields=encode(envelope), keep=keep)
