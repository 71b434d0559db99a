"""The shapes of entry that any producer may write, recognised without configuration.

1. Native: a field ``payload``, or ``payload_ref`` in its place, beside control fields. Further fields become
   ``attributes``.
2. One field ``payload``, ``data``, ``message`` or ``event`` beside control fields: a JSON object, or text, which is the
   input.
3. Bare fields: the field map is the payload and its strings stay strings. Where it has an ``input_value``, the control
   fields are taken out of it; otherwise the map is the producer's own and stays whole, and only ids, session, tenant
   and trace context are read from it as well.
4. A CloudEvent (1.0, JSON, structured) in one field of any name.
5. Debezium Server's Redis sink: compact (one field, its name the key and its value the change) and extended (the fields
   ``key`` and ``value``, and headers).

What is none of a shape's parts is kept in ``attributes``, for expressions (``event.attributes.key``).
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared_models.controls import CONTROL, CONTROL_ANYWHERE, check_label, read_time
from shared_models.errors import EnvelopeInvalid, PayloadTooLarge, VersionUnsupported
from shared_models.strict_json import dump_json, parse_json

BODY = ("payload", "data", "message", "event")
INPUT = "input_value"

_EVENTS = uuid.UUID("1f0f4c3e-6f0f-5b1e-9a53-6b1c2f7e4d10")
_OBJECT = re.compile(r"\s*\{")
_JSON_TYPE = re.compile(r"[^/;\s]+/(?:json|[^/;\s]*\+json)\s*(?:;.*)?", re.IGNORECASE)
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", re.IGNORECASE)
_NOTHING = "default"
"""What Debezium writes for an absent key or value (its null.key and null.value)."""
_OPERATIONS = {"c": "create", "u": "update", "d": "delete", "r": "read", "t": "truncate", "m": "message"}


@dataclass
class Draft:
    """An entry whose shape is known: its control fields still as text, its payload decoded."""

    controls: dict[str, str] = field(default_factory=dict)
    payload: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    event_id: str | None = None
    """An id that the shape itself carries, for entries without the field ``event_id``."""


def read_entry(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, bytes]:
    """The entry's fields by name. Raises EnvelopeInvalid where it has none, one twice, or a name that is not UTF-8."""
    entry: dict[str, bytes] = {}
    for raw, value in fields:
        name = _text(raw, field=raw.decode("utf-8", "backslashreplace"), what="the name")
        if name in entry:
            raise EnvelopeInvalid(f"{name}: the field is given twice", field=name)
        entry[name] = value
    if not entry:
        raise EnvelopeInvalid("the entry has no fields; it needs at least a payload", field="payload")
    return entry


def recognise(entry: Mapping[str, bytes], *, max_payload: int | None = None) -> Draft:
    """The entry as a draft. ``max_payload`` bounds the raw bytes of everything that is not a control field.

    Raises EnvelopeInvalid, PayloadTooLarge or VersionUnsupported.
    """
    rest = [name for name in entry if name not in CONTROL]
    if "payload" in entry or (len(rest) == 1 and rest[0] in BODY):
        body = "payload" if "payload" in entry else rest[0]
        _check_size(entry, [name for name in rest if name != body], body=body, limit=max_payload)
        return _native(entry, body, [name for name in rest if name != body])
    if INPUT in entry:
        _check_size(entry, rest, body=INPUT, limit=max_payload)
        return Draft(_controls(entry, CONTROL), _map(entry, rest))
    if "payload_ref" in entry and set(rest) <= {"attributes"}:
        _check_size(entry, rest, body="payload_ref", limit=max_payload)
        return Draft(_controls(entry, CONTROL), {}, _declared(_map(entry, rest).get("attributes")))
    if "schema" in entry and not rest:
        raise EnvelopeInvalid("payload: missing; the entry has control fields only", field="payload")
    _check_size(entry, list(entry), body=next(iter(rest or entry)), limit=max_payload)
    return _debezium(entry, rest) or _foreign_event(entry, rest) or _foreign(entry)


def _native(entry: Mapping[str, bytes], body: str, extra: list[str]) -> Draft:
    text = _text(entry[body], field=body)
    controls = _controls(entry, CONTROL)
    attributes: dict[str, Any] = _map(entry, extra)
    if "schema" in entry and body == "payload":
        # Written for this schema: what the payload holds is the payload, whatever it looks like.
        attributes.update(_declared(attributes.pop("attributes", None)))
        return Draft(controls, _body(text, field=body), attributes)
    payload = _body(text, field=body)
    if is_cloud_event(payload):
        draft = cloud_event(payload, field=body)
        return Draft({**draft.controls, **controls}, draft.payload, {**draft.attributes, **attributes}, draft.event_id)
    return Draft(controls, payload, attributes)


def _declared(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    if not _OBJECT.match(text):
        raise EnvelopeInvalid("attributes: is not a JSON object", field="attributes")
    value: dict[str, Any] = parse_json(text, field="attributes")
    return value


def _foreign_event(entry: Mapping[str, bytes], rest: list[str]) -> Draft | None:
    """A CloudEvent in a single field of some other name."""
    if len(rest) != 1 or b'"specversion"' not in entry[rest[0]]:
        return None
    text = _text(entry[rest[0]], field=rest[0])
    if not _OBJECT.match(text) or not is_cloud_event(value := parse_json(text, field=rest[0])):
        return None
    draft = cloud_event(value, field=rest[0])
    draft.controls = {**draft.controls, **_controls(entry, CONTROL)}
    return draft


def _foreign(entry: Mapping[str, bytes]) -> Draft:
    return Draft(_controls(entry, CONTROL_ANYWHERE), _map(entry, entry))


def _debezium(entry: Mapping[str, bytes], rest: list[str]) -> Draft | None:
    if len(rest) == 1 and (rest[0] == _NOTHING or rest[0].startswith("{")):
        key_text, value_field = rest[0], rest[0]
    elif "key" in rest and "value" in rest:
        key_text, value_field = entry["key"].decode("utf-8", "replace"), "value"
    else:
        return None
    key = _debezium_key(key_text)
    value = _text(entry[value_field], field=value_field)
    if key is None and not (key_text == _NOTHING and _OBJECT.match(value)):
        return None
    if value == _NOTHING:
        draft = Draft({"event_type": "tombstone"})
    elif _OBJECT.match(value):
        change = parse_json(value, field=value_field)
        if key is None and not _is_change(change):
            return None
        draft = _change(change, field=value_field)
    else:
        return None
    headers = _map(entry, [name for name in rest if name not in {"key", "value", value_field}])
    draft.attributes = {**headers, **draft.attributes, "key": key}
    draft.controls = {**draft.controls, **_controls(entry, CONTROL)}
    return draft


def _debezium_key(text: str) -> Any:
    """The key as a JSON object, without its schema; None where the text is none."""
    if not _OBJECT.match(text):
        return None
    try:
        return _unwrapped(parse_json(text, field="key"))
    except EnvelopeInvalid:
        return None


def _is_change(value: Any) -> bool:
    """Whether a keyless object is Debezium's: it has an operation, or a schema beside a payload, or is a CloudEvent."""
    return is_cloud_event(value) or _unwrapped(value) is not value or ("op" in value and "source" in value)


def _change(value: dict[str, Any], *, field: str) -> Draft:
    if is_cloud_event(value):
        draft = cloud_event(value, field=field)
        draft.payload = _as_payload(_unwrapped(draft.payload))
        return draft
    payload = _as_payload(_unwrapped(value))
    origin = payload.get("source")
    origin = origin if isinstance(origin, dict) else {}
    names = [origin.get(part) for part in ("name", "db", "schema", "table", "collection")]
    controls = {"source": ".".join(name for name in names if isinstance(name, str) and name)[:200]}
    if (operation := _OPERATIONS.get(str(payload.get("op")))) is not None:
        controls["event_type"] = operation
    if isinstance(at := payload.get("ts_ms"), int) and 0 <= at < 10**16:
        controls["timestamp"] = str(at)
    return Draft(controls, payload)


def _unwrapped(value: Any) -> Any:
    """The payload of Kafka Connect's ``{"schema": ..., "payload": ...}``; the value itself where it is none."""
    return value["payload"] if isinstance(value, dict) and set(value) == {"schema", "payload"} else value


def _as_payload(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {} if value is None else {INPUT: value if isinstance(value, str) else dump_json(value, field="payload")}


def is_cloud_event(value: Any) -> bool:
    """Whether a JSON value means to be a CloudEvent, complete or not."""
    if not isinstance(value, dict) or not isinstance(value.get("specversion"), str):
        return False
    return any(name in value for name in ("id", "source", "type"))


def cloud_event(value: Mapping[str, Any], *, field: str) -> Draft:
    """A CloudEvent in JSON (CloudEvents 1.0.2, JSON Event Format, 3), as a draft.

    A CloudEvent is known by its source and id together. An id that is a UUID or a ULID is unique by itself and becomes
    the event id; any other may come again from another source, so that the event id is then the UUIDv5 of both. The id
    itself, the subject and all extensions are in ``attributes``. Of the extensions, ``traceparent``, ``tracestate`` and
    ``expirytime`` mean what their specifications say.
    """
    known = {name: item for name, item in value.items() if item is not None}
    if not str(known.get("specversion", "")).startswith("1."):
        version = str(value.get("specversion"))[:40]
        raise VersionUnsupported(f"{field}: CloudEvents version {version!r} is not known here; 1.0 is", field=field)
    own = {name: _required(known, name, field=field) for name in ("id", "source", "type")}
    controls = {"source": own["source"], "event_type": own["type"]}
    for theirs, ours in (("time", "timestamp"), ("expirytime", "expires_at")):
        if theirs in known:
            controls[ours] = str(read_time(_string(known, theirs, field=field), field=f"{field}.{theirs}"))
    for name in ("traceparent", "tracestate"):
        if isinstance(known.get(name), str):
            controls[name] = known[name]
    elsewhere = {"specversion", "source", "type", "time", "data", "data_base64", *controls}
    attributes = {name: item for name, item in known.items() if name not in elsewhere}
    return Draft(controls, _cloud_data(known, field=field), attributes, _cloud_id(own["source"], own["id"]))


def _cloud_id(source: str, event_id: str) -> str:
    if _ULID.fullmatch(event_id):
        return event_id
    try:
        uuid.UUID(event_id)
    except ValueError:
        return str(uuid.uuid5(_EVENTS, f"{source}\n{event_id}"))
    return event_id


def _cloud_data(known: Mapping[str, Any], *, field: str) -> dict[str, Any]:
    if "data_base64" not in known:
        return _as_payload(known.get("data"))
    encoded = _string(known, "data_base64", field=field)
    kind = known.get("datacontenttype")
    kind = kind if isinstance(kind, str) else ""
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise EnvelopeInvalid(f"{field}: data_base64 is not Base64: {error}", field=field) from error
    if _JSON_TYPE.fullmatch(kind):
        return _as_payload(parse_json(_text(raw, field=field, what="data_base64"), field=field))
    if kind.lower().startswith("text/"):
        return {INPUT: _text(raw, field=field, what="data_base64")}
    return {"data_base64": encoded}


def _required(known: Mapping[str, Any], name: str, *, field: str) -> str:
    if not (text := _string(known, name, field=field)):
        raise EnvelopeInvalid(f"{field}: a CloudEvent needs {name!r}", field=field)
    return check_label(text, field=f"{field}.{name}")


def _string(known: Mapping[str, Any], name: str, *, field: str) -> str:
    value = known.get(name, "")
    if not isinstance(value, str):
        raise EnvelopeInvalid(f"{field}: the CloudEvent's {name!r} is not a string", field=field)
    return value


def _body(text: str, *, field: str) -> dict[str, Any]:
    text = text.removeprefix("\ufeff")
    if not _OBJECT.match(text):
        return {INPUT: text}
    try:
        value: dict[str, Any] = parse_json(text, field=field)
    except EnvelopeInvalid as error:
        hint = "; text that begins with { is read as JSON (the field input_value takes any text as it is)"
        raise EnvelopeInvalid(error.message + hint, field=field) from error
    return value


def _controls(entry: Mapping[str, bytes], names: frozenset[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names & entry.keys():
        if name in {"traceparent", "tracestate"}:
            text = entry[name].decode("utf-8", "replace")
        else:
            text = _text(entry[name], field=name)
        if text:
            found[name] = text
    return found


def _map(entry: Mapping[str, bytes], names: Iterable[str]) -> dict[str, Any]:
    return {name: _text(entry[name], field=name) for name in names}


def _text(raw: bytes, *, field: str, what: str = "the value") -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise EnvelopeInvalid(f"{field}: {what} is not UTF-8 (byte {error.start})", field=field) from error


def _check_size(entry: Mapping[str, bytes], names: list[str], *, body: str, limit: int | None) -> None:
    if limit is None:
        return
    size = sum(len(name.encode()) + len(entry[name]) for name in names if name != body) + len(entry[body])
    if size > limit:
        raise PayloadTooLarge(f"{body}: the payload has {size:,} bytes; at most {limit:,} are allowed", field=body)
