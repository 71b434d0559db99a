"""What a client may ask for beside the payload, when it sends an event."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Query
from starlette.requests import HTTPConnection

from shared_models.controls import MAX_ID_BYTES, MAX_URL_BYTES, check_callback_url, check_label, trace_context
from shared_models.errors import EnvelopeInvalid

MAX_KEY = 255
"""Bytes of an Idempotency-Key."""

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


async def _options(
    connection: HTTPConnection,
    *,
    session_id: Annotated[
        str | None, Query(description="Shares chat memory; at most 256 bytes.", min_length=1, max_length=MAX_ID_BYTES)
    ] = None,
    tenant_id: Annotated[
        str | None,
        Query(
            description="The tenant, where the key is for all; else it has to be the key's own.",
            min_length=1,
            max_length=MAX_ID_BYTES,
        ),
    ] = None,
    wait: Annotated[
        str | None,
        Query(
            description="Wait so long for the result: `30`, `30s`, `500ms`, `1m`. Answers 200 if it is there in time.",
            pattern=f"^{_WAIT.pattern}$",
        ),
    ] = None,
    stream: Annotated[
        bool, Query(description="Tell the models' tokens and the components in the run's events, as they come.")
    ] = False,
    callback: Annotated[
        str | None,
        Query(description="A URL that is told of the outcome, where the route allows it.", max_length=MAX_URL_BYTES),
    ] = None,
    idempotency_key: Annotated[
        str | None, Header(description="The same key and body: the same event. The same key, another body: 422.")
    ] = None,
    prefer: Annotated[str | None, Header(description="`wait=30`, as the query parameter (RFC 7240).")] = None,
    traceparent: Annotated[str | None, Header(description="W3C Trace Context.")] = None,
    tracestate: Annotated[str | None, Header()] = None,
) -> Options:
    most = connection.app.state.gateway.settings.gateway.max_wait
    parent, state = trace_context(traceparent, tracestate)
    if callback is not None:
        check_callback_url(callback, field="callback")
    seconds = _preferred(prefer) if wait is None else _seconds(wait)
    return Options(session_id, tenant_id, _key(idempotency_key), min(seconds, most), parent, state, stream, callback)


def _seconds(text: str) -> float:
    match = _WAIT.fullmatch(text)
    return float(match[1]) * _UNITS[match[2]] if match else 0.0


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


OptionsDep = Annotated[Options, Depends(_options)]
"""The options, as a handler's parameter."""
