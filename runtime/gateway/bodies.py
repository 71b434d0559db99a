"""Reading a request's body as a payload."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request

from runtime.gateway.problems import Problem
from shared_models.errors import EnvelopeInvalid
from shared_models.strict_json import parse_json

FORM = "application/x-www-form-urlencoded"

MAX_FIELDS = 1000
"""Fields of a form."""


def media_type(request: Request) -> str:
    """The body's media type in lower case, without parameters; empty where none is told."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def as_text(body: bytes) -> str:
    """A body as text. Raises EnvelopeInvalid where it is not UTF-8."""
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise EnvelopeInvalid(f"body: is not UTF-8 (byte {error.start})", field="body") from error


def payload(kind: str, body: bytes) -> tuple[dict[str, Any], str | None]:
    """The payload that a body of this media type is, and its JSON text where it is JSON.

    JSON has to be an object; plain text is the flow's input; a form is its fields. ``curl -d`` calls everything a form:
    what begins like a JSON object is read as one. Raises EnvelopeInvalid, and Problem 415.
    """
    if not body:
        raise EnvelopeInvalid("body: is empty; send a JSON object, or text/plain for the flow's input", field="body")
    text = as_text(body)
    if kind == "application/json" or kind.endswith("+json"):
        return json_object(text), text
    if kind == "text/plain":
        return {"input_value": text}, None
    if kind in ("", FORM):
        if text.lstrip(" \t\r\n").startswith("{"):
            return json_object(text), text
        if kind == FORM:
            return form(text), None
    raise Problem(415, "unsupported_media_type", "send application/json, text/plain, a form or a CloudEvent")


def json_object(text: str) -> dict[str, Any]:
    """A JSON object. Raises EnvelopeInvalid."""
    value = parse_json(text, field="body")
    if not isinstance(value, dict):
        raise EnvelopeInvalid("body: the payload has to be a JSON object", field="body")
    return value


def form(text: str) -> dict[str, Any]:
    """A form's fields: texts, or lists of texts where a name comes again. Raises EnvelopeInvalid."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise EnvelopeInvalid(f"body: is not a form: {error}", field="body") from error
    found: dict[str, Any] = {}
    for name, value in pairs:
        found[name] = value if name not in found else [*_listed(found[name]), value]
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
