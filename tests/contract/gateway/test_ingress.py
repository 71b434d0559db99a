"""Events in over HTTP: what is accepted, how it stands in the stream, what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from runtime.gateway.routes_known import keys_of
from tests.support.gateway import InProcess, gateway_in_process, route_entry
from tests.support.servers import RedisServer

HELLO = route_entry("hello")
EVENTS = "/v1/routes/hello/events"


@pytest.fixture
async def gate(broker_url: str) -> AsyncIterator[InProcess]:
    async with gateway_in_process(broker_url, HELLO) as made:
        yield made


def entries(server: RedisServer, stream: str = HELLO.stream) -> list[dict[str, str]]:
    return [fields for _, fields in server.execute("XRANGE", stream, "-", "+")]


async def test_an_accepted_event_is_in_the_stream_as_it_came(gate, server):
    text = '{ "input_value": "hi",  "n": 1.50 }'
    headers = {"content-type": "application/json"}
    done = await gate.http.post(EVENTS, content=text, headers=headers, params={"session_id": "s1"})
    assert done.status_code == 202, done.text
    told = done.json()
    assert done.headers["location"] == told["status_url"] == f"/v1/runs/{told['event_id']}"
    assert told["events_url"] == f"/v1/runs/{told['event_id']}/events"
    assert told["root_id"] == told["event_id"]
    [entry] = entries(server)
    assert entry["payload"] == text
    assert (entry["event_id"], entry["session_id"]) == (told["event_id"], "s1")
    record = await gate.gateway.broker.runs.get(keys_of(HELLO), told["event_id"])
    assert record is not None
    assert record.status.value == "queued"


async def test_text_and_forms_are_payloads_too(gate, server):
    for content, kind, payload in (
        ("hi {", "text/plain; charset=utf-8", {"input_value": "hi {"}),
        ("input_value=a+b&x=1&x=2", "application/x-www-form-urlencoded", {"input_value": "a b", "x": ["1", "2"]}),
        ('{"input_value": "c"}', "application/x-www-form-urlencoded", {"input_value": "c"}),
    ):
        done = await gate.http.post(EVENTS, content=content, headers={"content-type": kind})
        assert done.status_code == 202, done.text
        assert json.loads(entries(server)[-1]["payload"]) == payload


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        ("", "application/json", 422, "event_invalid"),
        ("[1]", "application/json", 422, "event_invalid"),
        ('{"a": NaN}', "application/json", 422, "event_invalid"),
        ('{"a": "\\ud800"}', "application/json", 422, "event_invalid"),
        ("{" * 200, "application/json", 422, "event_invalid"),
        (b"\xff\xfe", "application/json", 422, "event_invalid"),
        ("<a/>", "application/xml", 415, "unsupported_media_type"),
    ],
)
async def test_what_is_no_payload_is_refused(gate, server, content, kind, status, code):
    done = await gate.http.post(EVENTS, content=content, headers={"content-type": kind})
    problem = done.json()
    assert (done.status_code, problem["code"], problem["status"]) == (status, code, status)
    assert done.headers["content-type"] == "application/problem+json"
    assert problem["type"] == f"urn:headrace:problem:{code}"
    assert problem["instance"] == EVENTS
    assert entries(server) == []


async def test_an_unknown_route_is_404_and_names_near_ones(gate):
    done = await gate.http.post("/v1/routes/helo/events", json={})
    assert (done.status_code, done.json()["code"]) == (404, "route_not_found")
    assert "did you mean hello" in done.json()["detail"]


async def test_the_frameworks_own_errors_are_problems(gate):
    for method, path, code in (("GET", EVENTS, "method_not_allowed"), ("GET", "/nowhere", "not_found")):
        done = await gate.http.request(method, path)
        assert (done.json()["code"], done.headers["content-type"]) == (code, "application/problem+json")


async def test_nobody_is_sent_to_the_host_that_a_client_has_named(broker_url):
    """Nor to http:// where a proxy in front speaks TLS: a redirected client would show its key in the clear."""
    async with gateway_in_process(broker_url, auth="required") as one:
        for path in ("/healthz/", "/v1/load/", "/v1/routes/hello/events/", "//healthz"):
            for method in ("GET", "POST"):
                done = await one.http.request(method, path, headers={"host": "evil.example"})
                assert (done.status_code in (401, 404, 405), "location" in done.headers) == (True, False), path


async def test_a_key_makes_a_repeat_the_same_event(gate, server):
    def send(body: str, key: str = "k"):
        headers = {"content-type": "application/json", "idempotency-key": key}
        return gate.http.post(EVENTS, content=body, headers=headers)

    first, again, quoted = await send('{"a": 1}'), await send('{"a": 1}'), await send('{"a": 1}', '"k"')
    assert [done.status_code for done in (first, again, quoted)] == [202, 202, 202]
    assert [done.json()["duplicate"] for done in (first, again, quoted)] == [False, True, True]
    assert len({done.json()["event_id"] for done in (first, again, quoted)}) == 1
    other = await send('{"a": 2}')
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert len(entries(server)) == 1
    assert (await send('{"a": 2}', "k2")).json()["event_id"] != first.json()["event_id"]


async def test_health(gate):
    assert (await gate.http.get("/healthz")).json() == {"status": "ok"}
    assert (await gate.http.get("/readyz")).json() == {"status": "ready", "routes": 1}
    gate.gateway.ending.append("ending")
    assert (await gate.http.get("/readyz")).status_code == 503
