"""CloudEvents over HTTP, as the official library writes them, in all three content modes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cloudevents.core.bindings.http import to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from tests.support.gateway import InProcess, gateway_in_process, route_entry
from tests.support.servers import RedisServer

HELLO = route_entry("hello")
EVENTS = "/v1/routes/hello/events"
BATCH = {"content-type": "application/cloudevents-batch+json"}


@pytest.fixture
async def gate(broker_url: str) -> AsyncIterator[InProcess]:
    async with gateway_in_process(broker_url, HELLO) as made:
        yield made


def event(**more: Any) -> CloudEvent:
    attributes = {"id": "A 1", "source": "/shop/ö", "type": "order.paid", "subject": "order/17", "myext": 'a "b" €'}
    data = more.pop("data", {"input_value": "hi", "n": 1})
    return CloudEvent(attributes={**attributes, "datacontenttype": "application/json", **more}, data=data)


async def send(gate: InProcess, message: Any, **more: Any):
    return await gate.http.post(EVENTS, content=message.body, headers=message.headers, **more)


def entries(server: RedisServer) -> list[dict[str, str]]:
    return [fields for _, fields in server.execute("XRANGE", HELLO.stream, "-", "+")]


async def test_binary_and_structured_are_the_same_event(gate, server):
    binary, structured = to_binary(event(), JSONFormat()), to_structured(event(), JSONFormat())
    assert binary.headers["ce-myext"] != 'a "b" €'  # percent-encoded
    first, second = await send(gate, binary), await send(gate, structured)
    assert (first.status_code, second.status_code) == (202, 202), first.text + second.text
    assert first.json()["event_id"] == second.json()["event_id"]
    assert second.json()["duplicate"]
    [entry] = entries(server)
    assert json.loads(entry["payload"]) == {"input_value": "hi", "n": 1}
    assert (entry["source"], entry["event_type"]) == ("/shop/ö", "order.paid")
    kept = json.loads(entry["attributes"])
    assert (kept["id"], kept["subject"], kept["myext"]) == ("A 1", "order/17", 'a "b" €')


async def test_binary_data_that_is_no_json(gate, server):
    for kind, data, payload in (
        ("text/plain", "hello", {"input_value": "hello"}),
        ("application/octet-stream", b"\x00\xff", {"data_base64": "AP8="}),
    ):
        done = await send(gate, to_binary(event(id=kind, datacontenttype=kind, data=data), JSONFormat()))
        assert done.status_code == 202, done.text
        assert json.loads(entries(server)[-1]["payload"]) == payload


async def test_a_batch_is_all_of_its_events(gate, server):
    batch = [json.loads(to_structured(event(id=f"b{n}"), JSONFormat()).body) for n in range(3)]
    done = await gate.http.post(EVENTS, json=batch, headers=BATCH)
    assert done.status_code == 202, done.text
    told = [one["event_id"] for one in done.json()["events"]]
    assert told == [entry["event_id"] for entry in entries(server)]
    assert len(set(told)) == 3


async def test_a_batch_with_one_wrong_event_is_refused_whole(gate, server):
    good = json.loads(to_structured(event(), JSONFormat()).body)
    for bad in ({**good, "id": ""}, {**good, "specversion": "9.0"}, 5, {**good, "expirytime": "2001-01-01T00:00:00Z"}):
        done = await gate.http.post(EVENTS, json=[good, bad], headers=BATCH)
        assert done.status_code == 422, done.text
    assert (await gate.http.post(EVENTS, json=good, headers=BATCH)).status_code == 422
    assert (await gate.http.post(EVENTS, json=[good] * 501, headers=BATCH)).status_code == 422
    assert entries(server) == []


async def test_a_trace_is_handed_on_and_the_events_own_wins(gate, server):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await send(gate, to_structured(event(id="t1", traceparent=parent), JSONFormat()))
    other = parent.replace("0af7", "1bf8")
    binary = to_binary(event(id="t2"), JSONFormat())
    await gate.http.post(EVENTS, content=binary.body, headers={**binary.headers, "traceparent": other})
    assert [entry["traceparent"] for entry in entries(server)] == [parent, other]


@pytest.mark.parametrize("tenant", [["a"], {"a": 1}, 5, True, "", 1.5])
async def test_a_tenant_is_named_by_a_string(gate, server: RedisServer, tenant: Any):
    """What is no attribute of a CloudEvent is the sender's mistake, and no failure of the gateway."""
    one = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "tenantid": tenant}
    done = await gate.http.post(EVENTS, content=json.dumps([one]), headers=BATCH)
    assert done.status_code == 422, done.text
    assert server.execute("EXISTS", HELLO.stream) == 0
