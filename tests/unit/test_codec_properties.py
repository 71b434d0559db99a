from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_models import codec
from shared_models.controls import CONTROL
from shared_models.envelope import EventEnvelope
from shared_models.errors import ContractError, EnvelopeInvalid
from shared_models.shapes import BODY, INPUT

NOW = 1_750_000_000_000

text = st.text(st.characters(codec="utf-8"), max_size=20)
ids = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp", "Zs")), min_size=1, max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(text, values, max_size=4)
traces = st.from_regex(r"00-[1-9a-f][0-9a-f]{31}-[1-9a-f][0-9a-f]{15}-0[01]", fullmatch=True)


@st.composite
def envelopes(draw: st.DrawFn) -> EventEnvelope:
    event_id = draw(ids)
    traceparent = draw(st.none() | traces)
    return EventEnvelope(
        event_id=event_id,
        root_id=draw(st.just(event_id) | ids),
        parent_id=draw(st.none() | ids),
        step_index=draw(st.integers(0, 10**6)),
        event_type=draw(st.just("") | ids),
        source=draw(st.just("") | ids),
        tenant_id=draw(st.none() | ids),
        idempotency_key=draw(st.just(event_id) | ids),
        session_id=draw(st.none() | ids),
        timestamp=draw(st.integers(1, 10**15)),
        attempt=draw(st.integers(1, 100)),
        expires_at=draw(st.none() | st.integers(NOW + 1, 10**15)),
        reply_to=draw(st.none() | st.just("answers:{a}")),
        traceparent=traceparent,
        tracestate=draw(st.none() | st.just("vendor=1")) if traceparent else None,
        payload=draw(objects),
        attributes=draw(objects),
    )


def as_bytes(fields: tuple[tuple[str, str], ...]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in fields]


@given(envelopes())
def test_what_is_encoded_decodes_to_the_same(envelope: EventEnvelope) -> None:
    fields = as_bytes(codec.encode(envelope))
    assert codec.decode(fields, stream="s", entry_id="1-1", max_payload=10**6, now_ms=NOW) == envelope
    assert codec.peek_event_id(fields, stream="s", entry_id="1-1") == envelope.event_id


names = st.sampled_from([*sorted(CONTROL), *BODY, INPUT, "key", "value", "default", "attributes", '{"id":1}', "{", "x"])
bodies = st.sampled_from(
    [
        b"{",
        b"{}",
        b"[1]",
        b"default",
        b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"a":1}}',
        b'{"specversion":"1.0","id":5,"source":"s","type":"t"}',
        b'{"specversion":"1.0","id":"\\ud800","source":"s","type":"t"}',
        b'{"schema":{},"payload":null}',
        b'{"schema":{},"payload":{"op":["c"],"ts_ms":-1,"source":{"name":"a\\nb"}}}',
        b'{"op":"c","source":[],"ts_ms":99999999999999999999}',
        b'{"a":' * 150,
    ]
)
raw_fields = st.lists(
    st.tuples(names.map(str.encode) | st.binary(max_size=6), st.binary(max_size=12) | bodies), max_size=5
)


@given(raw_fields)
def test_any_entry_decodes_or_is_refused_naming_the_field(fields: list[tuple[bytes, bytes]]) -> None:
    try:
        envelope = codec.decode(fields, stream="s", entry_id="1-1", max_payload=500, now_ms=NOW)
    except ContractError as error:
        assert error.field is not None
        assert error.message
    else:
        # What was understood can be passed on, and means the same there.
        again = codec.decode(
            as_bytes(codec.encode(envelope)), stream="s", entry_id="1-1", max_payload=10**6, now_ms=NOW
        )
        assert again == envelope
        assert codec.peek_event_id(fields, stream="s", entry_id="1-1") == envelope.event_id


@given(raw_fields)
def test_peek_never_raises(fields: list[tuple[bytes, bytes]]) -> None:
    assert codec.peek_event_id(fields, stream="s", entry_id="1-1")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"event_id": ""}, "event_id"),
        ({"session_id": "a\nb"}, "session_id"),
        ({"tenant_id": "x" * 257}, "tenant_id"),
        ({"event_id": "\ud800"}, "event_id"),
        ({"reply_to": "hr:x"}, "reply_to"),
        ({"step_index": 10**7}, "step_index"),
        ({"attempt": 10**6 + 1}, "attempt"),
        ({"timestamp": 10**16}, "timestamp"),
        ({"session_id": " "}, "session_id"),
        ({"payload": {"a": float("nan")}}, "payload"),
        ({"payload": {"a": object()}}, "payload"),
        ({"payload": {"a": "\ud800"}}, "payload"),
        ({"attributes": {"a": {1, 2}}}, "attributes"),
    ],
)
def test_what_no_reader_would_take_is_not_written(changes: dict[str, Any], field: str) -> None:
    envelope = EventEnvelope(**{"event_id": "e", "root_id": "r", "idempotency_key": "k", **changes})
    with pytest.raises(EnvelopeInvalid) as caught:
        codec.encode(envelope)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("step_index", True), ("step_index", 2.0), ("attempt", True), ("attempt", 2.0), ("timestamp", True)],
)
def test_nor_is_what_only_looks_like_a_number(field: str, value: object) -> None:
    envelope = EventEnvelope(event_id="e", root_id="r", idempotency_key="k").model_copy(update={field: value})
    with pytest.raises(EnvelopeInvalid, match=field):
        codec.encode(envelope)


def test_the_bounds_themselves_are_written() -> None:
    most = {"step_index": 10**6, "attempt": 10**6, "timestamp": 10**16 - 1, "expires_at": 0, "event_id": "x" * 256}
    envelope = EventEnvelope(root_id="r", idempotency_key="k", **most)
    assert {name: str(value) for name, value in most.items()}.items() <= dict(codec.encode(envelope)).items()


def test_defaults_are_left_out() -> None:
    envelope = EventEnvelope(event_id="e", root_id="e", idempotency_key="e", payload={"input_value": "hé"})
    assert codec.encode(envelope) == (("schema", "1"), ("event_id", "e"), ("payload", '{"input_value":"hé"}'))
