"""Stream entries to envelopes and back. The shapes are in ``shapes``, the forms of control fields in ``controls``.

A decoded envelope has every default filled in; an encoded one leaves them out. ``decode(encode(e)) == e``, except that
an event without a timestamp has that of its entry.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence

from shared_models.controls import (
    check_callback_url,
    check_count,
    check_id,
    check_label,
    check_schema,
    check_time,
    read_count,
    read_time,
    trace_context,
)
from shared_models.envelope import SCHEMA_VERSION, EventEnvelope
from shared_models.errors import ContractError, EnvelopeInvalid, Expired
from shared_models.names import check_stream_name
from shared_models.references import Reference
from shared_models.shapes import read_entry, recognise
from shared_models.strict_json import dump_json

_DERIVED = uuid.UUID("5b0a9f2c-0d55-5f0f-8a3e-2f6b7c1d9e01")
_DOWNSTREAM = uuid.UUID("5b0a9f2c-0d55-5f0f-8a3e-2f6b7c1d9e02")


def decode(
    fields: Sequence[tuple[bytes, bytes]], *, stream: str, entry_id: str, max_payload: int, now_ms: int
) -> EventEnvelope:
    """The envelope of an entry of ``stream``. ``max_payload`` is in bytes, ``now_ms`` in ms since the epoch.

    Raises a ContractError that names the field: EnvelopeInvalid, VersionUnsupported, PayloadTooLarge or Expired.
    """
    draft = recognise(read_entry(fields), max_payload=max_payload)
    controls = draft.controls
    check_schema(controls.get("schema", SCHEMA_VERSION))
    if "payload_ref" in controls and draft.payload:
        raise EnvelopeInvalid("payload_ref: stands beside a payload; an event has one of them", field="payload_ref")
    event_id = _id(controls, "event_id") or draft.event_id or derived_event_id(stream, entry_id)
    traceparent, tracestate = trace_context(controls.get("traceparent"), controls.get("tracestate"))
    return EventEnvelope(
        event_id=event_id,
        root_id=_id(controls, "root_id") or _id(controls, "run_id") or event_id,
        parent_id=_id(controls, "parent_id"),
        step_index=_count(controls, "step_index", least=0),
        event_type=_label(controls, "event_type"),
        source=_label(controls, "source"),
        tenant_id=_id(controls, "tenant_id"),
        idempotency_key=_id(controls, "idempotency_key") or event_id,
        session_id=_id(controls, "session_id"),
        timestamp=read_time(controls.get("timestamp") or entry_id.partition("-")[0] or "0", field="timestamp"),
        attempt=_count(controls, "attempt", least=1),
        expires_at=_expiry(controls, now_ms),
        reply_to=check_stream_name(controls["reply_to"], field="reply_to") if "reply_to" in controls else None,
        traceparent=traceparent,
        tracestate=tracestate,
        tokens=controls.get("tokens") == "true",
        callback_url=_callback(controls),
        payload=draft.payload,
        payload_ref=_reference(controls),
        attributes=draft.attributes,
    )


def encode(envelope: EventEnvelope, *, payload: str | None = None) -> tuple[tuple[str, str], ...]:
    """The entry's fields: flat strings, defaults left out, the payload as JSON, the schema version always.

    ``payload_ref`` takes the payload's place. ``payload`` is the JSON text that the envelope's payload was read from,
    where it is to be kept as it came. Raises a ContractError that names the field where the envelope holds what no
    reader would take.
    """
    _check(envelope)
    values, event_id = vars(envelope), envelope.event_id
    fields = [("schema", SCHEMA_VERSION)]
    for name, usual in _TEXT_FIELDS:
        value = values[name]
        if value is None or value == usual or (value == event_id and name in _ITS_ID):
            continue
        fields.append((name, "true" if value is True else str(value)))
    if envelope.attributes:
        fields.append(("attributes", dump_json(envelope.attributes, field="attributes")))
    if envelope.payload_ref is None:
        fields.append(("payload", dump_json(envelope.payload, field="payload") if payload is None else payload))
    return tuple(fields)


def _check(envelope: EventEnvelope) -> None:
    values = vars(envelope)
    for name in _IDS:
        if (value := values[name]) is not None:
            check_id(value, field=name)
    for name in ("event_type", "source"):
        check_label(values[name], field=name)
    check_count(envelope.step_index, field="step_index", least=0)
    check_count(envelope.attempt, field="attempt", least=1)
    check_time(envelope.timestamp, field="timestamp")
    if envelope.reply_to is not None:
        check_stream_name(envelope.reply_to, field="reply_to")
    if envelope.callback_url is not None:
        check_callback_url(envelope.callback_url, field="callback_url")


_IDS = ("event_id", "root_id", "parent_id", "idempotency_key", "tenant_id", "session_id")
_ITS_ID = ("root_id", "idempotency_key")
"""Those that are the event's id unless something else is said."""
_USUAL = {"step_index": 0, "timestamp": 0, "attempt": 1, "tokens": False}
_TEXT_FIELDS = tuple(
    (name, _USUAL.get(name, "")) for name in EventEnvelope.model_fields if name not in ("payload", "attributes")
)
"""Those that are no JSON, in their order, and what is not written of each."""
_MAX_PEEK = 16 * 1024 * 1024


def new_event_id() -> str:
    """A fresh UUIDv7 (RFC 9562, 5.7): sorts by time to the millisecond, random otherwise."""
    value = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value & (1 << 128) - 1))


def derived_event_id(stream: str, entry_id: str) -> str:
    """The id of an event that brought none: the same however often its entry is delivered."""
    return str(uuid.uuid5(_DERIVED, f"{stream}\n{entry_id}"))


def downstream_event_id(parent_event_id: str, rule: int, index: int) -> str:
    """The id of what an event's publish rule publishes: the same however often it is published."""
    return str(uuid.uuid5(_DOWNSTREAM, f"{rule}\n{index}\n{parent_event_id}"))


def peek_event_id(fields: Sequence[tuple[bytes, bytes]], *, stream: str, entry_id: str) -> str:
    """The event id of an entry that did not decode: its own where it has a sane one, else the derived. Never raises.

    It is the id that ``decode`` gives where the entry decodes, so that an event that has expired meanwhile is known by
    the id it had.
    """
    own = next((value for name, value in fields if name == b"event_id"), None)
    try:
        if own:
            return check_id(own.decode(), field="event_id")
        # Of all shapes only a CloudEvent carries an id; nothing else is worth parsing, and nothing huge is.
        if any(b'"specversion"' in value for _, value in fields) and sum(len(value) for _, value in fields) < _MAX_PEEK:
            return recognise(read_entry(fields)).event_id or derived_event_id(stream, entry_id)
    except (ContractError, ValueError):
        pass
    return derived_event_id(stream, entry_id)


def _id(controls: dict[str, str], name: str) -> str | None:
    return check_id(controls[name], field=name) if name in controls else None


def _label(controls: dict[str, str], name: str) -> str:
    return check_label(controls[name], field=name) if name in controls else ""


def _count(controls: dict[str, str], name: str, *, least: int) -> int:
    return read_count(controls[name], field=name, least=least) if name in controls else least


def _callback(controls: dict[str, str]) -> str | None:
    text = controls.get("callback_url")
    return None if text is None else check_callback_url(text, field="callback_url")


def _reference(controls: dict[str, str]) -> str | None:
    text = controls.get("payload_ref")
    return None if text is None else str(Reference.parse(text, field="payload_ref"))


def _expiry(controls: dict[str, str], now_ms: int) -> int | None:
    if "expires_at" not in controls:
        return None
    expires_at = read_time(controls["expires_at"], field="expires_at")
    if expires_at <= now_ms:
        raise Expired(f"expires_at: the event expired {(now_ms - expires_at) / 1000:,.1f} s ago", field="expires_at")
    return expires_at
