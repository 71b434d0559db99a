"""Hashes and JSON as the scripts write them: to fields and back. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from runtime.broker.outcome import RunMeta
from shared_models.dead_letter import DeadLetterSummary
from shared_models.result import Pause, Published, RunRecord, RunResult, RunStatus
from shared_models.strict_json import KeptEncoder

_PUBLISHED = TypeAdapter(list[Published])


_COMPACT = KeptEncoder(separators=(",", ":"))


def to_json(value: Any) -> str:
    """JSON text of a model or of JSON values. Lone surrogates, which UTF-8 has no bytes for, become escapes."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    plain = _COMPACT.encode(value)
    if plain.isascii():
        return plain
    try:
        plain.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return plain


def show(value: bytes) -> str:
    """Text for people and models; bytes that are not UTF-8 are shown as escapes."""
    return value.decode("utf-8", "backslashreplace")


def texts(flat: Sequence[bytes]) -> dict[str, str]:
    """A hash as Redis answers it."""
    return {show(name): show(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


def text(fields: Mapping[str, str], name: str) -> str | None:
    """A field's text; None where it is absent or empty."""
    return fields.get(name) or None


def number(fields: Mapping[str, str], name: str) -> int | None:
    """A field's whole number; None where there is none."""
    try:
        return int(float(fields[name]))
    except (KeyError, ValueError):
        return None


def meta_fields(meta: RunMeta, *, event_id: str) -> list[str]:
    """What a run record tells of the event beside its state: names and values in turn.

    What is the event's id, as most often, is not written: a record is kept for days, and there are many.
    """
    pairs: Iterable[tuple[str, str | None]] = (
        ("route", meta.route),
        ("version", meta.version),
        ("root_id", meta.root_id if meta.root_id != event_id else None),
        ("parent_id", meta.parent_id),
        ("step_index", str(meta.step_index) if meta.step_index else None),
        ("session_id", meta.session_id),
        ("tenant_id", meta.tenant_id),
        ("idempotency_key", meta.key if meta.key != event_id else None),
        ("digest", meta.digest),
    )
    return [part for name, value in pairs if value is not None for part in (name, value)]


def run_record(fields: Mapping[str, str], *, event_id: str, stream: str) -> RunRecord:
    """A run record from its hash. What cannot be read is left out rather than hiding the rest."""
    return RunRecord(
        event_id=event_id,
        root_id=fields.get("root_id", event_id),
        parent_id=text(fields, "parent_id"),
        step_index=number(fields, "step_index") or 0,
        route=fields.get("route", ""),
        stream=stream,
        entry_id=text(fields, "entry_id"),
        status=_status(fields.get("status", "")),
        attempts=number(fields, "attempts") or 0,
        session_id=text(fields, "session_id"),
        tenant_id=text(fields, "tenant_id"),
        idempotency_key=text(fields, "idempotency_key") or event_id,
        version=text(fields, "version"),
        worker=text(fields, "worker"),
        queued_at=number(fields, "queued_at"),
        started_at=number(fields, "started_at"),
        ended_at=number(fields, "ended_at"),
        due_at=number(fields, "due_at"),
        last_error=text(fields, "last_error"),
        duplicate_of=text(fields, "duplicate_of"),
        pause=_pause(fields.get("pause", ""), number(fields, "due_at")),
        published=_published(fields.get("published", "")),
        result=_result(fields.get("result", "")),
        dead_letter=_dead_letter(fields),
    )


def _status(value: str) -> RunStatus:
    try:
        return RunStatus(value)
    except ValueError:
        return RunStatus.QUEUED


def _pause(value: str, due_at: int | None) -> Pause | None:
    if not value:
        return None
    try:
        return Pause.model_validate({**json.loads(value), "timeout_at": due_at})
    except (ValueError, TypeError):
        return None


def _published(value: str) -> list[Published]:
    try:
        return _PUBLISHED.validate_json(value) if value else []
    except ValidationError:
        return []


def _result(value: str) -> RunResult | None:
    if not value:
        return None
    try:
        return RunResult.model_validate(json.loads(value))
    except ValueError:
        return None


def _dead_letter(fields: Mapping[str, str]) -> DeadLetterSummary | None:
    value = fields.get("dead_letter", "")
    if not value:
        return None
    try:
        summary = DeadLetterSummary.model_validate_json(value)
    except ValidationError:
        return None
    return summary.model_copy(update={"id": text(fields, "dead_letter_id")})
