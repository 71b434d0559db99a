"""The control fields of a stream entry: what they are called and what form each must have.

All are optional; an empty value counts as absent, since Redis has no null. Forms:

- ids (``event_id, root_id, parent_id, idempotency_key, tenant_id, session_id``): 1 to 256 bytes of UTF-8 without
  control characters. ``run_id`` is read as ``root_id``.
- ``event_type, source``: up to 1,024 bytes without control characters.
- ``timestamp, expires_at``: milliseconds since the Unix epoch as an integer. ISO 8601 with a time of day is understood
  too (UTC where it names no offset), and a number with a decimal point as seconds, the way Python's clock writes it.
- ``step_index`` counts from 0, ``attempt`` from 1.
- ``reply_to``: a stream name that is not one of Headrace's own keys.
- ``tokens``: ``true``; anything else is no.
- ``callback_url``: an address for HTTP, of at most 2,048 bytes, without a user's name or password in it.
- ``traceparent, tracestate``: W3C Trace Context. As that specification asks, what cannot be read is left out and never
  fails the event.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.parse import urlsplit

from shared_models.envelope import SCHEMA_VERSION
from shared_models.errors import EnvelopeInvalid, VersionUnsupported

MAX_ID_BYTES = 256
MAX_LABEL_BYTES = 1024
MAX_TRACESTATE_BYTES = 512
MAX_URL_BYTES = 2048
MAX_COUNT = 10**6

CONTROL = frozenset(
    {
        "schema",
        "event_id",
        "root_id",
        "run_id",
        "parent_id",
        "step_index",
        "event_type",
        "source",
        "tenant_id",
        "idempotency_key",
        "session_id",
        "timestamp",
        "attempt",
        "expires_at",
        "reply_to",
        "traceparent",
        "tracestate",
        "tokens",
        "callback_url",
        "payload_ref",
    }
)
"""Names with a meaning of their own in an entry that has a payload or an ``input_value``."""

CONTROL_ANYWHERE = frozenset(
    {"event_id", "root_id", "run_id", "tenant_id", "idempotency_key", "session_id", "traceparent", "tracestate"}
)
"""Those that keep it beside fields that are not ours: there, a ``source`` or a ``timestamp`` is the producer's data."""

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_DIGITS = re.compile(r"[0-9]{1,16}")
_DECIMAL = re.compile(r"[0-9]{1,16}\.[0-9]{1,9}")
_LATEST = 10**16
"""The first number of ms that has more digits than are read."""
_SECONDS_BELOW = 10**11
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_TRACESTATE = re.compile(rf"[\x20-\x7e\t]{{1,{MAX_TRACESTATE_BYTES}}}")


def check_label(text: str, *, field: str, limit: int = MAX_LABEL_BYTES) -> str:
    """``text`` if it is short and printable; EnvelopeInvalid otherwise."""
    if len(text) <= limit and text.isascii() and text.isprintable():  # nearly all
        return text
    if found := _CONTROL_CHARACTER.search(text):
        raise EnvelopeInvalid(f"{field}: has the control character U+{ord(found[0]):04X}", field=field)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise EnvelopeInvalid(f"{field}: has half of a character", field=field) from error
    if size > limit:
        raise EnvelopeInvalid(f"{field}: has {size} bytes; at most {limit} are allowed", field=field)
    return text


def check_id(text: str, *, field: str) -> str:
    """``text`` if it can be an id; EnvelopeInvalid otherwise."""
    if len(text) <= MAX_ID_BYTES and text.isascii() and text.isprintable() and text.strip():  # nearly all
        return text
    if not text.strip():
        raise EnvelopeInvalid(f"{field}: is blank", field=field)
    return check_label(text, field=field, limit=MAX_ID_BYTES)


def check_schema(text: str) -> None:
    """Raise VersionUnsupported for a schema version that this reader does not know."""
    if text != SCHEMA_VERSION:
        known = f"this worker reads version {SCHEMA_VERSION}"
        raise VersionUnsupported(f"schema: version {text[:40]!r} is not known here; {known}", field="schema")


def read_count(text: str, *, field: str, least: int) -> int:
    """A whole number from ``least`` up; EnvelopeInvalid otherwise."""
    if _DIGITS.fullmatch(text) and least <= int(text) <= MAX_COUNT:
        return int(text)
    raise EnvelopeInvalid(f"{field}: {text[:80]!r} is not a whole number from {least} to {MAX_COUNT}", field=field)


def check_count(value: int, *, field: str, least: int) -> int:
    """``value`` if it is from ``least`` up and could be read again; EnvelopeInvalid otherwise."""
    if type(value) is int and least <= value <= MAX_COUNT:
        return value
    return read_count(str(value), field=field, least=least)


def check_time(value: int, *, field: str) -> int:
    """``value`` if it is a time in ms that could be read again; EnvelopeInvalid otherwise."""
    if type(value) is int and 0 <= value < _LATEST:
        return value
    return read_time(str(value), field=field)


def read_time(text: str, *, field: str) -> int:
    """Milliseconds since the epoch; EnvelopeInvalid where the text is no time."""
    if _DIGITS.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        number = float(text)
        return round(number * 1000) if number < _SECONDS_BELOW else round(number)
    try:
        # A date alone is more likely a mistake than midnight.
        moment = datetime.fromisoformat(text) if len(text) > 10 else None
        if moment is not None:
            aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            if (milliseconds := round(aware.timestamp() * 1000)) >= 0:
                return milliseconds
    except (ValueError, OverflowError):
        pass
    raise EnvelopeInvalid(
        f"{field}: {text[:80]!r} is not a time; write milliseconds since 1970 (UTC) or ISO 8601", field=field
    )


def check_callback_url(text: str, *, field: str) -> str:
    """``text`` if it can be called; EnvelopeInvalid otherwise. Whether it may be called is for who calls it."""
    check_label(text, field=field, limit=MAX_URL_BYTES)
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:  # a broken port or bracket
        raise EnvelopeInvalid(f"{field}: {error}", field=field) from error
    if not good or parts.fragment or any(c in text for c in ' \\"<>'):
        raise EnvelopeInvalid(f"{field}: is not an http or https URL", field=field)
    if "@" in parts.netloc:
        raise EnvelopeInvalid(f"{field}: has a name or password in it", field=field)
    return text


def trace_context(traceparent: str | None, tracestate: str | None) -> tuple[str | None, str | None]:
    """The two as they came if they can be read (W3C Trace Context, 3.2 and 3.3), None for what cannot."""
    if traceparent is None or not _TRACEPARENT.fullmatch(traceparent) or len(traceparent) > MAX_ID_BYTES:
        return None, None
    if traceparent.startswith("00-") and len(traceparent) != 55:
        return None, None
    state = tracestate if tracestate is not None and _TRACESTATE.fullmatch(tracestate) else None
    return traceparent, state
