"""What a client may ask for beside the payload, when it sends an event."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.requests import HTTPConnection

from runtime.gateway.problems import Problem
from shared_models.controls import MAX_ID_BYTES, MAX_URL_BYTES, check_callback_url, check_label, trace_context
from shared_models.errors import EnvelopeInvalid

MAX_KEY = 255
"""Bytes of an Idempotency-Key."""

_FLAG = TypeAdapter(bool)
_WAIT = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(ms|s|m)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
_PREFER = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?([0-9]{1,6})\"?\s*(?=$|[,;])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Options:
    """``wait``: seconds to wait for the result; 0: not at all."""

    session_id: str | None
    tenant_id: str | None
    key: str | None
    wait: float
    traceparent: str | None
    tracestate: str | None
    tokens: bool
    callback_url: str | None

    @property
    def controls(self) -> dict[str, str]:
        """The control fields of the event."""
        found = (
            ("session_id", self.session_id),
            ("traceparent", self.traceparent),
            ("tracestate", self.tracestate),
            ("tokens", "true" if self.tokens else None),
            ("callback_url", self.callback_url),
        )
        return {name: value for name, value in found if value is not None}


def _query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": {"type": "string", **schema}}


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


PARAMETERS = [
    _query("session_id", "Shares chat memory; at most 256 bytes.", minLength=1, maxLength=MAX_ID_BYTES),
    _query(
        "tenant_id",
        "The tenant, where the key is for all; else it has to be the key's own.",
        minLength=1,
        maxLength=MAX_ID_BYTES,
    ),
    _query(
        "wait",
        "Wait so long for the result: `30`, `30s`, `500ms`, `1m`. Answers 200 if it is there in time.",
        pattern=f"^{_WAIT.pattern}$",
    ),
    _query(
        "stream",
        "Tell the models' tokens and the components in the run's events, as they come.",
        type="boolean",
        default=False,
    ),
    _query("callback", "A URL that is told of the outcome, where the route allows it.", maxLength=MAX_URL_BYTES),
    _header("Idempotency-Key", "The same key and body: the same event. The same key, another body: 422."),
    _header("Prefer", "`wait=30`, as the query parameter (RFC 7240)."),
    _header("traceparent", "W3C Trace Context."),
    _header("tracestate", "W3C Trace Context."),
]
"""What OpenAPI tells of the options. FastAPI would read them as well, at a quarter of what a whole request costs."""


def options_of(connection: HTTPConnection, *, most: float) -> Options:
    """The options of a request, which waits ``most`` seconds at most. Raises Problem 422 and EnvelopeInvalid."""
    query, headers = connection.query_params, connection.headers
    callback, wait = query.get("callback"), query.get("wait")
    if callback is not None:
        check_callback_url(callback, field="callback")
    parent, state = trace_context(headers.get("traceparent"), headers.get("tracestate"))
    return Options(
        session_id=_id(query.get("session_id"), "session_id"),
        tenant_id=_id(query.get("tenant_id"), "tenant_id"),
        key=_key(headers.get("idempotency-key")),
        wait=min(_preferred(headers.get("prefer")) if wait is None else _seconds(wait), most),
        traceparent=parent,
        tracestate=state,
        tokens=_flag(query.get("stream"), "stream"),
        callback_url=callback,
    )


def _invalid(name: str, reason: str) -> Problem:
    # Never the value: a client may have put a secret in the wrong place.
    return Problem(422, "request_invalid", f"query.{name}: {reason}")


def _id(text: str | None, name: str) -> str | None:
    if text is not None and not 0 < len(text) <= MAX_ID_BYTES:
        raise _invalid(name, f"has to have 1 to {MAX_ID_BYTES} characters")
    return text


def _flag(text: str | None, name: str) -> bool:
    try:
        return text is not None and _FLAG.validate_python(text)
    except ValidationError as error:
        raise _invalid(name, "has to be true or false") from error


def _seconds(text: str) -> float:
    if (match := _WAIT.fullmatch(text)) is None:
        raise _invalid("wait", "has to be a duration: 30, 30s, 500ms, 1m")
    return float(match[1]) * _UNITS[match[2]]


def _preferred(prefer: str | None) -> float:
    # A preference that cannot be read is ignored (RFC 7240, 2).
    match = _PREFER.search(prefer or "")
    return float(match[1]) if match else 0.0


def _key(text: str | None) -> str | None:
    if text is None:
        return None
    # The draft standard writes the key as a structured string, in quotes; most clients write it bare.
    bare = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    if not bare.strip():
        raise EnvelopeInvalid("Idempotency-Key: is empty", field="Idempotency-Key")
    return check_label(bare, field="Idempotency-Key", limit=MAX_KEY)
