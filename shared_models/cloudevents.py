"""CloudEvents over HTTP: binary, structured and batched content mode (CloudEvents 1.0.2, HTTP Protocol Binding, 3)."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from shared_models.errors import EnvelopeInvalid
from shared_models.shapes import Draft, cloud_event
from shared_models.strict_json import parse_json

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"

MAX_BATCH = 500
"""Events in one request."""

_PREFIX = "ce-"
_JSON = re.compile(r"application/json|text/json|[\w.-]+/[\w.-]+\+json")


def is_cloud_request(media_type: str, header_names: Iterable[str]) -> bool:
    """Whether a request brings CloudEvents. Names in lower case, the media type without parameters."""
    return media_type.startswith("application/cloudevents") or f"{_PREFIX}specversion" in header_names


def read_request(media_type: str, headers: Iterable[tuple[str, str]], body: bytes) -> list[Draft]:
    """The events of a request, as drafts. Raises EnvelopeInvalid or VersionUnsupported."""
    if media_type == BATCH:
        return _batch(_text(body))
    if media_type.startswith("application/cloudevents"):
        if media_type != STRUCTURED:
            raise EnvelopeInvalid(f"the event format {media_type!r} is not known here; {STRUCTURED} is", field="body")
        return [_event(parse_json(_text(body), field="body"), field="body")]
    return [cloud_event(_from_headers(media_type, headers, body), field="ce-")]


def _batch(text: str) -> list[Draft]:
    events = parse_json(text, field="body")
    if not isinstance(events, list):
        raise EnvelopeInvalid("body: a batch of CloudEvents is a JSON array", field="body")
    if len(events) > MAX_BATCH:
        raise EnvelopeInvalid(f"body: has {len(events)} events; at most {MAX_BATCH} are taken at once", field="body")
    return [_event(event, field=f"body[{place}]") for place, event in enumerate(events)]


def _event(value: Any, *, field: str) -> Draft:
    if not isinstance(value, dict):
        raise EnvelopeInvalid(f"{field}: a CloudEvent is a JSON object", field=field)
    return cloud_event(value, field=field)


def _from_headers(media_type: str, headers: Iterable[tuple[str, str]], body: bytes) -> dict[str, Any]:
    """A binary event as the JSON format would write it. Header values are percent-encoded (3.1.3.2)."""
    found = [(name.lower(), value) for name, value in headers]
    event: dict[str, Any] = {n.removeprefix(_PREFIX): unquote(v) for n, v in found if n.startswith(_PREFIX)}
    for name in ("data", "data_base64", "datacontenttype"):
        event.pop(name, None)
    if media_type:
        event["datacontenttype"] = media_type
    if body:
        event.update(_data(media_type, body))
    return event


def _data(media_type: str, body: bytes) -> dict[str, Any]:
    if _JSON.fullmatch(media_type):
        return {"data": parse_json(_text(body), field="body")}
    if media_type.startswith("text/"):
        return {"data": _text(body)}
    if media_type:
        return {"data_base64": base64.b64encode(body).decode()}
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(body).decode()}
    try:
        return {"data": parse_json(text, field="body")}
    except EnvelopeInvalid:
        return {"data": text}


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise EnvelopeInvalid(f"body: is not UTF-8 (byte {error.start})", field="body") from error
