"""A third party's webhook as an event: its signature checked, its own id the event's key."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from runtime.broker.fleet import RouteEntry
from runtime.broker.publisher import DEDUP
from runtime.gateway import bodies
from runtime.gateway.accepting import Incoming
from runtime.gateway.problems import Problem
from runtime.secret_sources import live_secrets
from runtime.telemetry import logs
from shared_models import webhooks
from shared_models.controls import MAX_LABEL_BYTES, check_label
from shared_models.errors import EnvelopeInvalid
from shared_models.route import WebhookSpec
from shared_models.strict_json import parse_json

_LOG = logs.get_logger("headrace.gateway")

_KEPT = (
    "content-type", "user-agent", "webhook-id", "webhook-timestamp", "svix-id", "svix-timestamp", "x-github-event",
    "x-github-delivery", "x-github-hook-id", "x-slack-request-timestamp", "x-slack-retry-num",
)  # fmt: skip
"""Headers that an event keeps, for expressions. Signatures are not among them."""

_LONGEST_VALUE = 500


def checked(spec: WebhookSpec, route: RouteEntry, headers: Mapping[str, str], body: bytes) -> webhooks.Signed:
    """The request, if one of the live secrets has signed it. Raises Problem 401, or 503 where no secret can be used."""
    try:
        secrets = live_secrets(spec.secrets)
        if not secrets:
            raise ValueError("none of its secrets is set")
        return webhooks.verify(spec.scheme, headers, body, secrets, now=time.time(), tolerance=spec.tolerance)
    except webhooks.SignatureRefused as error:
        told = {"WWW-Authenticate": f'Webhook-Signature scheme="{spec.scheme}"'}
        raise Problem(401, error.code, str(error), headers=told) from error
    except ValueError as error:
        # What is wrong may be told, the secret is not in it. The sender tries again later.
        _LOG.error("webhook.unusable", route=route.route, reason=str(error))
        detail = "the gateway has no secret to check this webhook with; its log says why"
        raise Problem(503, "webhook_secret_missing", detail, retry_after=60) from error


def read(spec: WebhookSpec, signed: webhooks.Signed, headers: Mapping[str, str], body: bytes, keep: float) -> Incoming:
    """The event of a request that was checked. ``keep``: seconds that run records are kept."""
    payload, text, raw = _payload(headers, bodies.as_text(body))
    kept = {name: headers[name][:_LONGEST_VALUE] for name in _KEPT if name in headers}
    attributes: dict[str, Any] = {"webhook": {"scheme": spec.scheme, "id": signed.message_id, "headers": kept}}
    if raw is not None:
        attributes["raw_body"] = raw
    controls = {"source": f"webhook:{spec.scheme}"}
    if kind := _event_type(spec.scheme, headers, payload):
        controls["event_type"] = kind
    # GitHub signs no time: what was seen is remembered as long as it can be.
    ttl = max(DEDUP, keep) if spec.scheme == "github" else DEDUP
    return Incoming(payload, text, attributes, controls, key=f"webhook:{signed.message_id}", ttl=ttl)


def answered_here(spec: WebhookSpec, headers: Mapping[str, str], body: bytes) -> dict[str, Any] | None:
    """The answer to a request by which a sender only tries the address; None: it is an event."""
    if spec.scheme == "github" and headers.get("x-github-event") == "ping":
        return {"pong": True}
    if spec.scheme == "slack" and b'"url_verification"' in body:
        with suppress(EnvelopeInvalid):
            value = parse_json(bodies.as_text(body), field="body")
            if isinstance(value, dict) and value.get("type") == "url_verification":
                return {"challenge": str(value.get("challenge", ""))}
    return None


def _payload(headers: Mapping[str, str], text: str) -> tuple[dict[str, Any], str | None, str | None]:
    """The payload; its JSON text where that is the body; the body where it is kept beside the payload."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() == bodies.FORM:
        form = bodies.form(text)
        inner = form.get("payload")
        # GitHub and Slack can send their JSON as the one field of a form.
        if set(form) == {"payload"} and isinstance(inner, str) and inner.lstrip().startswith("{"):
            return bodies.json_object(inner), inner, text
        return form, None, text
    if text.lstrip(" \t\r\n").startswith("{"):
        return bodies.json_object(text), text, None
    return {"input_value": text}, None, None


def _event_type(scheme: webhooks.Scheme, headers: Mapping[str, str], payload: Mapping[str, Any]) -> str:
    inner = payload.get("event")
    found: Sequence[Any] = (
        headers.get("x-github-event") if scheme == "github" else None,
        inner.get("type") if scheme == "slack" and isinstance(inner, dict) else None,
        payload.get("type"),
    )
    text = next((value for value in found if isinstance(value, str)), "")
    with suppress(EnvelopeInvalid):
        return check_label(text, field="event_type", limit=MAX_LABEL_BYTES)
    return ""
