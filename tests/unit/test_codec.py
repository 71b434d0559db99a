from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from shared_models import codec
from shared_models.envelope import EventEnvelope
from shared_models.errors import ContractError, EnvelopeInvalid, Expired
from tests.support.malformed import MALFORMED, MAX_PAYLOAD, Malformed

NOW = 1_750_000_000_000
ENTRY = "1749999999999-3"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def decode(
    *fields: tuple[str | bytes, str | bytes], now_ms: int = NOW, max_payload: int = MAX_PAYLOAD
) -> EventEnvelope:
    raw = [tuple(part if isinstance(part, bytes) else part.encode() for part in pair) for pair in fields]
    return codec.decode(raw, stream="flows:x", entry_id=ENTRY, max_payload=max_payload, now_ms=now_ms)


# --- shape 1: native ------------------------------------------------------------------------------------------------


def test_only_a_payload_is_needed() -> None:
    event = decode(("payload", '{"input_value": "hi"}'))
    derived = codec.derived_event_id("flows:x", ENTRY)
    assert event.payload == {"input_value": "hi"}
    assert (event.event_id, event.root_id, event.idempotency_key) == (derived, derived, derived)
    assert (event.step_index, event.attempt, event.parent_id, event.session_id) == (0, 1, None, None)
    assert event.timestamp == 1749999999999


def test_all_native_fields() -> None:
    event = decode(
        ("schema", "1"),
        ("event_id", "e1"),
        ("root_id", "r1"),
        ("parent_id", "p1"),
        ("step_index", "2"),
        ("event_type", "order.created"),
        ("source", "shop"),
        ("tenant_id", "acme"),
        ("idempotency_key", "k1"),
        ("session_id", "s1"),
        ("timestamp", "1749999000000"),
        ("attempt", "2"),
        ("expires_at", str(NOW + 1)),
        ("reply_to", "answers"),
        ("traceparent", TRACEPARENT),
        ("tracestate", "a=1"),
        ("payload", '{"a": {"b": [1, 2.5, null, true]}}'),
    )
    assert event == EventEnvelope(
        event_id="e1",
        root_id="r1",
        parent_id="p1",
        step_index=2,
        event_type="order.created",
        source="shop",
        tenant_id="acme",
        idempotency_key="k1",
        session_id="s1",
        timestamp=1749999000000,
        attempt=2,
        expires_at=NOW + 1,
        reply_to="answers",
        traceparent=TRACEPARENT,
        tracestate="a=1",
        payload={"a": {"b": [1, 2.5, None, True]}},
    )


def test_the_older_shape() -> None:
    event = decode(
        ("event_id", "e1"),
        ("event_type", "t"),
        ("source", "s"),
        ("payload", "{}"),
        ("timestamp", "2025-06-15T12:00:00Z"),
    )
    assert (event.event_id, event.event_type, event.source, event.payload) == ("e1", "t", "s", {})
    assert event.timestamp == 1749988800000


def test_run_id_is_the_root_and_root_id_wins() -> None:
    assert decode(("run_id", "r"), ("payload", "{}")).root_id == "r"
    assert decode(("run_id", "r"), ("root_id", "q"), ("payload", "{}")).root_id == "q"


def test_an_empty_control_field_counts_as_absent() -> None:
    names = ("event_id", "tenant_id", "session_id", "timestamp", "step_index", "expires_at", "reply_to", "schema")
    assert decode(*((name, "") for name in names), ("payload", "{}")) == decode(("payload", "{}"))


def test_further_fields_beside_a_payload_are_attributes() -> None:
    event = decode(("payload", '{"a": 1}'), ("customer", "bob"))
    assert (event.payload, event.attributes) == ({"a": 1}, {"customer": "bob"})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1750000000000", 1750000000000),
        ("1750000000.25", 1750000000250),
        ("1750000000000.4", 1750000000000),
        ("2025-06-15T12:00:00Z", 1749988800000),
        ("2025-06-15T14:00:00+02:00", 1749988800000),
        ("2025-06-15 12:00:00.5", 1749988800500),
    ],
)
def test_times(written: str, expected: int) -> None:
    assert decode(("timestamp", written), ("payload", "{}")).timestamp == expected


@pytest.mark.parametrize(
    "written", ["2025-06-15", "-5", "1e12", "nan", "12 June", "0x10", "1969-01-01T00:00:00Z", "9" * 17]
)
def test_what_is_no_time(written: str) -> None:
    with pytest.raises(EnvelopeInvalid, match=r"^timestamp: "):
        decode(("timestamp", written), ("payload", "{}"))


def test_expiry_is_judged_at_the_time_of_reading() -> None:
    fields = (("expires_at", str(NOW)), ("payload", "{}"))
    assert decode(*fields, now_ms=NOW - 1).expires_at == NOW
    with pytest.raises(Expired) as caught:
        decode(*fields, now_ms=NOW + 1500)
    assert caught.value.field == "expires_at"
    assert "1.5 s ago" in caught.value.message


@pytest.mark.parametrize(
    "header",
    [
        "x",
        TRACEPARENT[:-1],
        TRACEPARENT + "-extra",
        TRACEPARENT.replace("00-", "ff-", 1),
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        TRACEPARENT.upper(),
        b"\xff",
    ],
)
def test_a_malformed_traceparent_is_ignored_and_its_tracestate_with_it(header: str | bytes) -> None:
    event = decode(("traceparent", header), ("tracestate", "a=1"), ("payload", "{}"))
    assert (event.traceparent, event.tracestate) == (None, None)


def test_a_later_version_of_traceparent_may_be_longer() -> None:
    header = TRACEPARENT.replace("00-", "01-", 1) + "-more"
    assert decode(("traceparent", header), ("payload", "{}")).traceparent == header


# --- shape 2: one field ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["payload", "data", "message", "event"])
def test_one_field_with_an_object(name: str) -> None:
    assert decode((name, ' {"a": 1}')).payload == {"a": 1}
    assert decode((name, '\ufeff{"a": 1}')).payload == {"a": 1}


@pytest.mark.parametrize("name", ["payload", "data", "message", "event"])
@pytest.mark.parametrize("text", ["hello", "", "[1, 2]", '"quoted"', "12", "null", "say {this}", " two\nlines\t"])
def test_one_field_with_text_is_the_input(name: str, text: str) -> None:
    assert decode((name, text)).payload == {"input_value": text}


def test_control_fields_stand_beside_the_one_field() -> None:
    event = decode(("message", "hello"), ("session_id", "s1"), ("source", "chat"))
    assert (event.payload, event.session_id, event.source) == ({"input_value": "hello"}, "s1", "chat")


# --- shape 3: bare fields -------------------------------------------------------------------------------------------


def test_bare_fields_are_the_payload_and_strings_stay_strings() -> None:
    assert decode(("input_value", "hello")).payload == {"input_value": "hello"}
    assert decode(("input_value", '{"a": '), ("n", "12")).payload == {"input_value": '{"a": ', "n": "12"}
    assert decode(("level", "error"), ("message", "disk full")).payload == {"level": "error", "message": "disk full"}


def test_control_fields_are_taken_out_beside_an_input_value() -> None:
    event = decode(("input_value", "hi"), ("session_id", "s"), ("event_id", "e"), ("expires_at", str(NOW + 5)))
    assert (event.payload, event.session_id, event.event_id) == ({"input_value": "hi"}, "s", "e")
    with pytest.raises(EnvelopeInvalid, match=r"^attempt: "):
        decode(("input_value", "hi"), ("attempt", "first"))


def test_a_producers_own_map_stays_whole() -> None:
    event = decode(
        ("timestamp", "yesterday"),
        ("source", "pump"),
        ("reply_to", "bob@example.org"),
        ("session_id", "s"),
        ("event_id", "7"),
    )
    assert event.payload == {
        "timestamp": "yesterday",
        "source": "pump",
        "reply_to": "bob@example.org",
        "session_id": "s",
        "event_id": "7",
    }
    assert (event.event_id, event.session_id, event.source, event.reply_to) == ("7", "s", "", None)


# --- shape 4: CloudEvents -------------------------------------------------------------------------------------------

CLOUD: dict[str, Any] = {
    "specversion": "1.0",
    "id": "A234-1234-1234",
    "source": "/sensors/1",
    "type": "com.example.event",
    "subject": "pump",
    "time": "2025-06-15T12:00:00Z",
    "datacontenttype": "application/json",
    "unset": None,
    "partition": 5,
    "data": {"input_value": "hi"},
}


def cloud(**changes: Any) -> str:
    return json.dumps({name: value for name, value in {**CLOUD, **changes}.items() if value is not ...})


@pytest.mark.parametrize("name", ["data", "event", "payload", "message", "cloudevent", "value"])
def test_a_cloud_event_in_one_field(name: str) -> None:
    event = decode((name, cloud()))
    assert event.payload == {"input_value": "hi"}
    assert (event.source, event.event_type, event.timestamp) == ("/sensors/1", "com.example.event", 1749988800000)
    assert event.attributes == {
        "id": "A234-1234-1234",
        "subject": "pump",
        "partition": 5,
        "datacontenttype": "application/json",
    }


def test_a_cloud_event_is_known_by_source_and_id() -> None:
    first = decode(("data", cloud())).event_id
    assert decode(("event", cloud(data=...))).event_id == first
    assert decode(("data", cloud(source="/sensors/2"))).event_id != first
    assert decode(("data", cloud(id="other"))).event_id != first
    uuid.UUID(first)


@pytest.mark.parametrize("own", ["7f3d7c1b-98a4-4b0e-9a6e-5ad5d63ce6f5", "01ARZ3NDEKTSV4RRFFQ69G5FAV"])
def test_an_id_that_is_unique_by_itself_is_kept(own: str) -> None:
    assert decode(("data", cloud(id=own))).event_id == own


def test_an_entrys_own_control_fields_win_over_the_cloud_events() -> None:
    event = decode(("data", cloud()), ("event_id", "mine"), ("session_id", "s"), ("source", "x"))
    assert (event.event_id, event.session_id, event.source) == ("mine", "s", "x")


@pytest.mark.parametrize(
    ("changes", "payload"),
    [
        ({"data": "text"}, {"input_value": "text"}),
        ({"data": "<a/>", "datacontenttype": "application/xml"}, {"input_value": "<a/>"}),
        ({"data": [1, 2]}, {"input_value": "[1,2]"}),
        ({"data": None}, {}),
        ({"data": ...}, {}),
        ({"data": ..., "data_base64": "eyJhIjogMX0="}, {"a": 1}),
        ({"data": ..., "data_base64": "aGk=", "datacontenttype": "text/plain"}, {"input_value": "hi"}),
        ({"data": ..., "data_base64": "/w==", "datacontenttype": "image/png"}, {"data_base64": "/w=="}),
    ],
)
def test_a_cloud_events_data(changes: dict[str, Any], payload: dict[str, Any]) -> None:
    assert decode(("data", cloud(**changes))).payload == payload


def test_a_cloud_events_trace_and_expiry() -> None:
    event = decode(("data", cloud(traceparent=TRACEPARENT, tracestate="a=1", expirytime="2025-06-15T18:00:00Z")))
    assert (event.traceparent, event.tracestate, event.expires_at) == (TRACEPARENT, "a=1", 1750010400000)
    with pytest.raises(Expired):
        decode(("data", cloud(expirytime="2025-06-15T12:00:00Z")))


def test_a_payload_of_our_own_clients_is_never_taken_for_something_else() -> None:
    assert decode(("schema", "1"), ("payload", cloud())).payload == json.loads(cloud())


def test_an_object_that_only_mentions_specversion_is_a_payload() -> None:
    assert decode(("data", '{"specversion": "1.0"}')).payload == {"specversion": "1.0"}
    assert decode(("note", '{"specversion": "1.0"}')).payload == {"note": '{"specversion": "1.0"}'}


# --- shape 5: Debezium Server ---------------------------------------------------------------------------------------

CHANGE: dict[str, Any] = {
    "before": None,
    "after": {"id": 1, "name": "Ada"},
    "source": {"name": "shop", "db": "inventory", "schema": "public", "table": "customers", "lsn": 5},
    "op": "c",
    "ts_ms": 1749999000000,
}
WRAPPED = json.dumps({"schema": {"type": "struct"}, "payload": CHANGE})


@pytest.mark.parametrize("key", ['{"id": 1}', '{"schema": {"type": "struct"}, "payload": {"id": 1}}'])
@pytest.mark.parametrize("value", [json.dumps(CHANGE), WRAPPED])
@pytest.mark.parametrize("extended", [False, True])
def test_a_change_compact_and_extended(key: str, value: str, extended: bool) -> None:
    fields = (("key", key), ("value", value), ("TENANT", "acme")) if extended else ((key, value),)
    event = decode(*fields)
    assert event.payload == CHANGE
    assert (event.event_type, event.source) == ("create", "shop.inventory.public.customers")
    assert event.timestamp == 1749999000000
    assert event.attributes == {"key": {"id": 1}, **({"TENANT": "acme"} if extended else {})}


@pytest.mark.parametrize("fields", [(("default", WRAPPED),), (("key", "default"), ("value", WRAPPED))])
def test_a_change_without_a_key(fields: tuple[tuple[str, str], ...]) -> None:
    event = decode(*fields)
    assert (event.payload, event.attributes) == (CHANGE, {"key": None})


@pytest.mark.parametrize("fields", [(('{"id": 1}', "default"),), (("key", '{"id": 1}'), ("value", "default"))])
def test_a_tombstone_names_itself(fields: tuple[tuple[str, str], ...]) -> None:
    event = decode(*fields)
    assert (event.payload, event.event_type, event.attributes) == ({}, "tombstone", {"key": {"id": 1}})


def test_a_change_written_as_a_cloud_event() -> None:
    value = cloud(data={"schema": {}, "payload": CHANGE})
    event = decode(('{"id": 1}', value))
    assert (event.payload, event.source) == (CHANGE, "/sensors/1")
    assert event.attributes["key"] == {"id": 1}


@pytest.mark.parametrize(
    "fields",
    [
        (("default", "hello"),),
        (("default", '{"a": 1}'),),
        (("key", "colour"), ("value", "red")),
        (("key", '{"id": 1}'), ("value", "red")),
        (("{name}", "hello"),),
    ],
)
def test_what_only_resembles_a_change_stays_a_field_map(fields: tuple[tuple[str, str], ...]) -> None:
    assert decode(*fields).payload == dict(fields)


# --- malformed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case.name)
def test_malformed_entries_say_what_is_wrong_and_where(case: Malformed) -> None:
    with pytest.raises(ContractError) as caught:
        decode(*case.fields)
    assert (caught.value.code, caught.value.field) == (case.code, case.field)
    assert caught.value.message
    assert not caught.value.retryable


def test_there_are_malformed_entries_of_many_kinds_under_distinct_names() -> None:
    assert len({case.name for case in MALFORMED}) == len(MALFORMED) > 10


def test_an_entry_without_fields() -> None:
    with pytest.raises(EnvelopeInvalid) as caught:
        decode()
    assert caught.value.field == "payload"


def test_the_limit_is_in_bytes_of_the_raw_payload() -> None:
    assert decode(("payload", "é" * 50), max_payload=100)
    for fields in (
        (("payload", "é" * 51),),
        (("input_value", "é" * 51),),
        (("a", "é" * 50), ("b", "")),
        (("payload", "x"), ("y", "z" * 100)),
    ):
        with pytest.raises(ContractError) as caught:
            decode(*fields, max_payload=100)
        assert caught.value.code == "payload_too_large"
    assert decode(("payload", "x" * 100), ("event_id", "e" * 200), max_payload=100)


def test_100_levels_are_allowed_and_101_are_not() -> None:
    decode(("payload", '{"a":' * 100 + "1" + "}" * 100))
    with pytest.raises(EnvelopeInvalid, match="100 levels"):
        decode(("payload", '{"a":' * 101 + "1" + "}" * 101))


# --- ids ------------------------------------------------------------------------------------------------------------


def test_derived_ids_are_stable_and_distinct() -> None:
    # Written down, since they must not change between versions: a redelivery has to meet its own record.
    assert codec.derived_event_id("flows:x", "1-1") == "1a483c06-823d-50fd-97d8-d43caecf45b6"
    assert codec.downstream_event_id("e", 0, 0) == "9ff08573-c67d-5059-bdef-51ee3cc402b9"
    made = {codec.downstream_event_id(parent, rule, index) for parent in "ab" for rule in (0, 1) for index in (0, 1)}
    assert len(made) == 8


def test_new_ids_are_version_7_and_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec.time, "time_ns", lambda: 1_750_000_000_000_000_000)
    first = uuid.UUID(codec.new_event_id())
    monkeypatch.setattr(codec.time, "time_ns", lambda: 1_750_000_000_001_000_000)
    second = uuid.UUID(codec.new_event_id())
    assert (first.version, first.variant) == (7, uuid.RFC_4122)
    assert first.int >> 80 == 1_750_000_000_000
    assert str(first) < str(second)
    assert len({codec.new_event_id() for _ in range(1000)}) == 1000


def test_the_id_of_what_did_not_decode() -> None:
    derived = codec.derived_event_id("s", "1-1")

    def peek(*fields: tuple[bytes, bytes]) -> str:
        return codec.peek_event_id(fields, stream="s", entry_id="1-1")

    assert peek((b"event_id", b"mine"), (b"payload", b"{")) == "mine"
    assert peek((b"event_id", b"\xff"), (b"payload", b"{")) == derived
    assert peek((b"event_id", b"a\nb")) == derived
    assert peek() == derived
    expired = cloud(expirytime="2020-01-01T00:00:00Z").encode()
    assert peek((b"data", expired)) == decode(("data", cloud())).event_id
