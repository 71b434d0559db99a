"""The load that an autoscaler asks for: everything counts, and what cannot be counted is no 0."""

from __future__ import annotations

import pytest

from runtime.broker.streams import StreamCounts
from runtime.gateway.routes_known import keys_of
from shared_models.dead_letter import ErrorInfo
from tests.contract.gateway.test_auth import bearer, make_key
from tests.support.gateway import gateway_in_process, route_entry
from tests.support.hand import Hand, send

HELLO, OTHER = route_entry("hello"), route_entry("other")
KEYS = keys_of(HELLO)


@pytest.fixture
async def gate(broker_url: str):
    async with gateway_in_process(broker_url, HELLO, OTHER) as made:
        yield made


async def load(gate, path: str = "/v1/routes/hello/load") -> dict[str, int]:
    answer = await gate.http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_what_waits_runs_and_is_put_off_is_load(gate, server):
    nothing = {"load": 0, "waiting": 0, "running": 0, "delayed": 0, "blocked": 0}
    assert await load(gate) == await load(gate, "/v1/load") == nothing
    hand = await Hand.ready(gate.gateway.broker, keys=KEYS)
    for _ in range(4):
        assert (await gate.http.post("/v1/routes/hello/events", json={"input_value": "x"})).status_code == 202
    assert await load(gate) == {**nothing, "load": 4, "waiting": 4}
    first, second = [await hand.begin(delivery) for delivery in await hand.fetch(2)]
    assert await load(gate) == {**nothing, "load": 4, "waiting": 2, "running": 2}
    await hand.retry(first, delay=100.0)
    await hand.suspend(second)
    assert await load(gate) == {**nothing, "load": 4, "waiting": 2, "delayed": 2}
    for delivery in await hand.fetch(2):
        await hand.complete(await hand.begin(delivery))
    assert await load(gate) == {**nothing, "load": 2, "delayed": 2}
    await gate.gateway.broker.streams.block(KEYS, error=ErrorInfo(code="no_key", message="set it"), probe_interval=30.0)
    assert await load(gate) == await load(gate, "/v1/load") == {**nothing, "load": 2, "delayed": 2, "blocked": 1}


async def test_callbacks_that_wait_are_their_route_s_load(gate):
    callbacks = route_entry("hello:callbacks", stream="flows:hello:callbacks", internal=True)
    await gate.register(callbacks)
    await gate.gateway.broker.streams.ensure_group(keys_of(callbacks))
    await send(gate.gateway.broker, "c1", stream=callbacks.stream)
    assert (await load(gate))["load"] == 1
    assert (await gate.http.get("/v1/routes/hello:callbacks/load")).status_code == 404


async def test_all_routes_together(gate):
    for route, count in (("hello", 3), ("other", 2)):
        for _ in range(count):
            await gate.http.post(f"/v1/routes/{route}/events", json={"input_value": "x"})
    assert (await load(gate, "/v1/load"))["load"] == 5


async def test_what_cannot_be_counted_is_no_answer(gate, monkeypatch):
    async def unknown(keys, dead_letters):
        return [StreamCounts(waiting=None) for _ in keys]

    monkeypatch.setattr(gate.gateway.broker.streams, "counts", unknown)
    for path in ("/v1/routes/hello/load", "/v1/load"):
        answer = await gate.http.get(path)
        assert (answer.status_code, answer.json()["code"]) == (503, "load_unknown")
        assert "load" not in answer.json()
        assert answer.headers["retry-after"]


async def test_without_redis_there_is_no_answer(gate, server):
    await load(gate)
    server.stop()
    try:
        answer = await gate.http.get("/v1/routes/hello/load")
    finally:
        server.start()
    assert (answer.status_code, answer.json()["code"]) == (503, "redis_unavailable")


async def test_before_a_worker_has_told_of_a_route_nothing_is_known(broker_url: str):
    """0 would keep the first worker from ever being started."""
    async with gateway_in_process(broker_url) as gate:
        answer = await gate.http.get("/v1/load")
        assert (answer.status_code, answer.json()["code"]) == (503, "load_unknown")
        assert (await gate.http.get("/v1/routes/hello/load")).status_code == 404


async def test_an_unknown_route_has_no_load(gate):
    answer = await gate.http.get("/v1/routes/nope/load")
    assert (answer.status_code, answer.json()["code"]) == (404, "route_not_found")


async def test_a_key_that_reads_is_needed_and_no_tenants(broker_url: str):
    async with gateway_in_process(broker_url, HELLO, auth="required") as gate:
        wanted = {"": 401}
        for scopes, tenant, status in ((("read",), None, 200), (("send",), None, 403), (("read",), "blue", 403)):
            token, _ = await make_key(gate, *scopes, tenant=tenant)
            wanted[token] = status
        for path in ("/v1/routes/hello/load", "/v1/load"):
            told = {t: (await gate.http.get(path, headers=bearer(t) if t else None)).status_code for t in wanted}
            assert told == wanted
