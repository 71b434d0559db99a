"""A dead letter as a stream entry: what is known of the failure, then the original fields byte for byte. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from itertools import chain

from pydantic import ValidationError

from runtime.broker.delivery import Delivery
from runtime.broker.gate import Claim
from runtime.broker.outcome import RunMeta
from runtime.broker.records import number, show, text, to_json
from runtime.broker.scripts import Argument
from shared_models.dead_letter import DeadLetter, ErrorInfo

Pairs = Sequence[tuple[bytes, bytes]]

FIELD = b"f:"
"""Stands before each original name, so that none can pass for one of ours."""

MORE = b"dl_more"
"""Original fields beyond MAX_PAIRS, packed as JSON: a Lua call takes some 8,000 arguments."""

MAX_PAIRS = 3000


def letter_fields(
    claim: Claim, error: ErrorInfo, *, delivery: Delivery, attempts: int, meta: RunMeta
) -> list[Argument]:
    """Names and values in turn; the script puts ``dl_first_at`` and ``dl_died_at`` before them."""
    known: list[tuple[str, str | int | None]] = [
        ("dl_route", meta.route),
        ("dl_stream", claim.keys.stream),
        ("dl_group", claim.keys.group),
        ("dl_entry_id", claim.entry_id),
        ("dl_event_id", claim.event_id),
        ("dl_root_id", meta.root_id),
        ("dl_key", claim.key),
        ("dl_code", error.code),
        ("dl_reason", error.message),
        ("dl_error", to_json(error)),
        ("dl_attempts", attempts),
        ("dl_version", meta.version),
        ("dl_worker", claim.worker),
    ]
    flat: list[Argument] = [part for name, value in known if value is not None for part in (name, value)]
    flat += chain.from_iterable((FIELD + name, value) for name, value in delivery.fields[:MAX_PAIRS])
    if rest := delivery.fields[MAX_PAIRS:]:
        packed = [[base64.b64encode(part).decode() for part in pair] for pair in rest]
        flat += (MORE, json.dumps(packed, separators=(",", ":")))
    return flat


def original_fields(pairs: Pairs) -> tuple[tuple[bytes, bytes], ...]:
    """The original entry's fields, in their order."""
    return tuple(_originals(pairs))


def dead_letter(letter_id: str, pairs: Pairs) -> DeadLetter:
    """A dead letter from its entry. Readable whatever somebody else may have added to the stream."""
    ours = {show(name): show(value) for name, value in pairs if name.startswith(b"dl_")}
    fields = original_fields(pairs)
    if not ours:
        fields = tuple(pairs)  # not one that we wrote
    return DeadLetter(
        id=letter_id,
        route=ours.get("dl_route", ""),
        stream=ours.get("dl_stream", ""),
        entry_id=ours.get("dl_entry_id", ""),
        event_id=ours.get("dl_event_id", ""),
        root_id=ours.get("dl_root_id", ""),
        code=ours.get("dl_code", ""),
        reason=ours.get("dl_reason", ""),
        error=_error(ours),
        attempts=number(ours, "dl_attempts") or 0,
        first_at=number(ours, "dl_first_at"),
        died_at=number(ours, "dl_died_at") or 0,
        version=text(ours, "dl_version"),
        worker=text(ours, "dl_worker"),
        fields={show(name): show(value) for name, value in fields},
    )


def _originals(pairs: Pairs) -> Iterator[tuple[bytes, bytes]]:
    for name, value in pairs:
        if name.startswith(FIELD):
            yield name[len(FIELD) :], value
        elif name == MORE:
            for packed_name, packed_value in json.loads(value):
                yield base64.b64decode(packed_name), base64.b64decode(packed_value)


def _error(ours: dict[str, str]) -> ErrorInfo:
    try:
        return ErrorInfo.model_validate_json(ours["dl_error"])
    except (KeyError, ValidationError):
        return ErrorInfo(code=ours.get("dl_code", ""), message=ours.get("dl_reason", ""))
