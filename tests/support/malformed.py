"""Entries that no worker may run: each is dead-lettered at once, with its raw bytes and a reason that names the field.

Shared by the tests of the codec, of the worker and of the commands.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Malformed:
    """One malformed entry. ``field`` is what the reason names, ``code`` the dead letter's."""

    name: str
    fields: tuple[tuple[bytes, bytes], ...]
    field: str
    code: str = "event_invalid"


MAX_PAYLOAD = 64 * 1024
"""The limit that TOO_LARGE goes over. A worker under test needs it as its max_payload, or leaves that case out."""

_OK = (b"payload", b'{"input_value":"hi"}')

TOO_LARGE = Malformed(
    "payload over the limit",
    ((b"payload", b'{"input_value":"' + b"x" * MAX_PAYLOAD + b'"}'),),
    "payload",
    "payload_too_large",
)

MALFORMED: tuple[Malformed, ...] = (
    Malformed("truncated JSON", ((b"payload", b'{"input_value": "hi'),), "payload"),
    Malformed("text after the object", ((b"data", b'{"input_value": "hi"} and more'),), "data"),
    Malformed("NaN", ((b"payload", b'{"input_value": "hi", "score": NaN}'),), "payload"),
    Malformed("a number that overflows", ((b"payload", b'{"input_value": "hi", "score": 1e999}'),), "payload"),
    Malformed("nested too deep", ((b"payload", b'{"a":' * 300 + b"1" + b"}" * 300),), "payload"),
    Malformed("nested beyond the parser", ((b"payload", b'{"a":[' * 10_000),), "payload"),
    Malformed("half of a character", ((b"payload", b'{"input_value": "\\ud83d"}'),), "payload"),
    Malformed("payload that is not UTF-8", ((b"payload", b"\xff\xfe\x00hi"),), "payload"),
    Malformed("bare value that is not UTF-8", ((b"input_value", b"caf\xe9"),), "input_value"),
    Malformed("name that is not UTF-8", ((b"\xff\xfe", b"hi"), _OK), "\\xff\\xfe"),
    Malformed(
        "field given twice", ((b"payload", b'{"input_value":"a"}'), (b"payload", b'{"input_value":"b"}')), "payload"
    ),
    TOO_LARGE,
    Malformed("unknown schema", ((b"schema", b"99"), _OK), "schema", "schema_unsupported"),
    Malformed("control fields only", ((b"schema", b"1"), (b"event_id", b"e-1")), "payload"),
    Malformed("expired", ((b"expires_at", b"1000"), _OK), "expires_at", "event_expired"),
    Malformed("timestamp that is no time", ((b"timestamp", b"yesterday"), _OK), "timestamp"),
    Malformed("expires_at that is no time", ((b"expires_at", b"soon"), _OK), "expires_at"),
    Malformed("step_index that is no number", ((b"step_index", b"two"), _OK), "step_index"),
    Malformed("negative step_index", ((b"step_index", b"-1"), _OK), "step_index"),
    Malformed("attempt zero", ((b"attempt", b"0"), _OK), "attempt"),
    Malformed("control character in an id", ((b"event_id", b"a\nb"), _OK), "event_id"),
    Malformed("id that is too long", ((b"event_id", b"x" * 257), _OK), "event_id"),
    Malformed("session that is too long", ((b"session_id", b"x" * 257), (b"input_value", b"hi")), "session_id"),
    Malformed("tenant with a control character", ((b"tenant_id", b"a\x00b"), _OK), "tenant_id"),
    Malformed("reply to our own key", ((b"reply_to", b"hr:{flows:x}:headrace:due"), _OK), "reply_to"),
    Malformed("reply to a broken name", ((b"reply_to", b"a}b"), _OK), "reply_to"),
    Malformed("payload elsewhere", ((b"payload_ref", b"s3://bucket/key"), _OK), "payload_ref"),
    Malformed(
        "CloudEvent of another version",
        ((b"data", b'{"specversion":"0.3","id":"1","source":"/s","type":"t"}'),),
        "data",
        "schema_unsupported",
    ),
    Malformed("CloudEvent without an id", ((b"data", b'{"specversion":"1.0","source":"/s","type":"t"}'),), "data"),
    Malformed(
        "CloudEvent with a wrong time",
        ((b"data", b'{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"noon"}'),),
        "data.time",
    ),
    Malformed(
        "CloudEvent with wrong Base64",
        ((b"data", b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"*"}'),),
        "data",
    ),
    Malformed("change that is no JSON", ((b"key", b'{"id":1}'), (b"value", b'{"op":"c",')), "value"),
)
