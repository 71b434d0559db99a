"""Too much for a route, for a tenant, for Redis; and Redis away."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.gateway import pressure
from runtime.registry.snapshot import ingress_of
from shared_models.route import RouteSpec
from tests.support.gateway import InProcess, gateway_in_process, route_entry
from tests.support.servers import RedisServer, valkey_binary

EVENTS = "/v1/routes/hello/events"


def hello(**limits: Any):
    spec = RouteSpec.model_validate({"limits": limits})
    return route_entry("hello", ingress=json.loads(json.dumps(ingress_of(spec))))


async def post(gate: InProcess, **params: str):
    return await gate.http.post(EVENTS, json={"a": 1}, params=params)


async def test_over_the_rate_is_429_with_a_time(broker_url):
    async with gateway_in_process(broker_url, hello(rate="6/m", burst=2, tenant={"rate": "1/m"})) as gate:
        got = [await post(gate, tenant_id=tenant) for tenant in ("a", "a", "b", "c")]
        assert [done.status_code for done in got] == [202, 429, 202, 429]
        assert [got[1].json()["code"], got[3].json()["code"]] == ["tenant_rate_limited", "rate_limited"]
        assert 59 <= int(got[1].headers["retry-after"]) <= 60
        assert 9 <= int(got[3].headers["retry-after"]) <= 10
        assert got[3].json()["retry_after"] <= 10
        assert got[3].headers["content-type"] == "application/problem+json"


async def test_a_full_backlog_is_429_until_it_has_room(broker_url, server):
    async with gateway_in_process(broker_url, hello(backlog=2)) as gate:
        got = [await post(gate) for _ in range(3)]
        assert [done.status_code for done in got] == [202, 202, 429]
        assert (got[2].json()["code"], got[2].headers["retry-after"]) == ("backlog_full", "5")
        server.execute("XTRIM", "flows:hello", "MAXLEN", 1)
        assert (await post(gate)).status_code == 202


async def test_a_tenants_backlog_has_room_when_its_runs_have_ended(broker_url, server, monkeypatch):
    monkeypatch.setattr(pressure, "TIDIED", 0.0)
    async with gateway_in_process(broker_url, hello(tenant={"backlog": 1})) as gate:
        first = await post(gate, tenant_id="a")
        assert (await post(gate, tenant_id="a")).json()["code"] == "tenant_backlog_full"
        assert (await post(gate, tenant_id="b")).status_code == 202
        record = f"hr:{{flows:hello}}:headrace:run:{first.json()['event_id']}"
        server.execute("HSET", record, "status", "completed")
        assert (await post(gate, tenant_id="a")).status_code == 202


async def test_a_refused_request_with_a_key_can_come_again(broker_url, server):
    async with gateway_in_process(broker_url, hello(backlog=1)) as gate:
        await post(gate)
        headers = {"idempotency-key": "k"}
        assert (await gate.http.post(EVENTS, json={}, headers=headers)).status_code == 429
        server.execute("DEL", "flows:hello")
        assert (await gate.http.post(EVENTS, json={}, headers=headers)).json()["duplicate"] is False


@pytest.fixture
def own() -> Any:
    with RedisServer(valkey_binary()) as server:
        yield server


async def test_near_its_memory_limit_redis_is_spared(own, monkeypatch):
    monkeypatch.setattr(pressure, "FRESH", -1.0)
    async with gateway_in_process(own.url, route_entry("hello")) as gate:
        assert (await post(gate)).status_code == 202
        used = int(own.execute("INFO", "memory")["used_memory"])
        own.execute("CONFIG", "SET", "maxmemory", int(used * 1.05))
        done = await post(gate)
        assert (done.status_code, done.json()["code"], done.headers["retry-after"]) == (503, "redis_memory", "5")
        own.execute("CONFIG", "SET", "maxmemory", used * 4)
        assert (await post(gate)).status_code == 202


async def test_redis_away_is_503_and_its_return_202(own):
    async with gateway_in_process(own.url, route_entry("hello"), auth="required") as gate:
        unknown = {"x-api-key": f"hr_{'0' * 12}_{'x' * 43}"}
        own.kill()
        done = await gate.http.post(EVENTS, json={}, headers=unknown)
        assert (done.status_code, done.json()["code"], done.headers["retry-after"]) == (503, "redis_unavailable", "2")
        assert str(own.port) not in done.text
        ready = await gate.http.get("/readyz")
        assert ready.status_code == 503
        assert (await gate.http.get("/healthz")).status_code == 200
        own.start()
        assert (await gate.http.post(EVENTS, json={}, headers=unknown)).status_code == 401
