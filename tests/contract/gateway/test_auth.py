"""Who may ask for what: API keys, tenants, and browsers where no key is needed."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.broker.api_keys import ApiKey, new_token
from runtime.gateway import auth
from runtime.gateway.auth import Auth
from runtime.settings import GatewaySettings
from tests.support.gateway import InProcess, gateway_in_process, route_entry

HELLO = route_entry("hello")
EVENTS = "/v1/routes/hello/events"


async def make_key(gate: InProcess, *scopes: str, lives: float | None = None, **more: Any) -> tuple[str, ApiKey]:
    token, key_id, digest = new_token()
    return token, await gate.gateway.broker.api_keys.add(ApiKey(key_id, digest, scopes, **more), lives=lives)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
async def gate(broker_url: str):
    async with gateway_in_process(broker_url, HELLO, auth="required") as made:
        yield made


def post(gate: InProcess, headers: dict[str, str] | None = None, **more: Any):
    return gate.http.post(EVENTS, json={"input_value": "x"}, headers=headers, **more)


async def test_without_a_good_key_nothing_is_taken(gate, server):
    good, key = await make_key(gate, "send")
    wrong = [None, {"authorization": f"Basic {good}"}, {"x-api-key": good[:-1]}, bearer(""), bearer("hr_x")]
    wrong += [bearer(f"hr_{key.id}_"), bearer(f"hr_{'0' * 12}_{good[16:]}"), bearer(good + "\u00e9")]
    for headers in wrong:
        done = await post(gate, {k: v.encode("latin-1") for k, v in headers.items()} if headers else None)
        assert (done.status_code, done.json()["code"]) == (401, "unauthorized"), headers
        assert done.headers["www-authenticate"].startswith("Bearer")
    assert server.execute("EXISTS", HELLO.stream) == 0
    for headers in (bearer(good), {"x-api-key": good}, {"authorization": f"bearer {good}"}):
        assert (await post(gate, headers)).status_code == 202


async def test_a_scope_is_needed(gate):
    reader, _ = await make_key(gate, "read")
    done = await post(gate, bearer(reader))
    assert (done.status_code, done.json()["code"]) == (403, "scope_missing")
    admin, _ = await make_key(gate, "admin")
    assert (await post(gate, bearer(admin))).status_code == 202


async def test_two_keys_live_while_one_is_rotated_and_a_revoked_one_ends(gate, monkeypatch):
    monkeypatch.setattr(auth, "FRESH", -1.0)
    (old, first), (new, _) = await make_key(gate, "send", name="shop"), await make_key(gate, "send", name="shop")
    assert [(await post(gate, bearer(token))).status_code for token in (old, new)] == [202, 202]
    assert await gate.gateway.broker.api_keys.revoke(first.id)
    assert not await gate.gateway.broker.api_keys.revoke(first.id)
    assert [(await post(gate, bearer(token))).status_code for token in (old, new)] == [401, 202]


async def test_an_expired_key_is_none(gate, server):
    token, key = await make_key(gate, "send", lives=-1)
    assert key.expires_at < key.created_at
    assert (await post(gate, bearer(token))).status_code == 401


async def test_redis_keeps_no_key(gate, server):
    token, _ = await make_key(gate, "send")
    kept = str(server.execute("HGETALL", "hr:{fleet}:keys"))
    assert token not in kept
    assert token.split("_", 2)[2] not in kept


async def test_a_tenants_key_sends_for_its_tenant_only(gate, server):
    token, _ = await make_key(gate, "send", tenant="blue")
    assert (await post(gate, bearer(token))).status_code == 202
    assert (await post(gate, bearer(token), params={"tenant_id": "blue"})).status_code == 202
    refused = [await post(gate, bearer(token), params={"tenant_id": "red"})]
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "tenantid": "red", "data": {}}
    headers = {**bearer(token), "content-type": "application/cloudevents+json"}
    refused.append(await gate.http.post(EVENTS, json=event, headers=headers))
    headers["content-type"] = "application/cloudevents-batch+json"
    refused.append(await gate.http.post(EVENTS, json=[{**event, "tenantid": "blue"}, event], headers=headers))
    assert [done.status_code for done in refused] == [403, 403, 422]
    tenants = [fields["tenant_id"] for _, fields in server.execute("XRANGE", HELLO.stream, "-", "+")]
    assert tenants == ["blue", "blue"]


async def test_two_tenants_may_use_one_key_or_event_id(gate, server):
    ids = set()
    for tenant in ("blue", "red"):
        token, _ = await make_key(gate, "send", tenant=tenant)
        done = await post(gate, {**bearer(token), "idempotency-key": "order-1"})
        ids.add(done.json()["event_id"])
        event = {"specversion": "1.0", "id": "01a22a30-138e-706e-bf95-00cf8c203eea", "source": "s", "type": "t"}
        headers = {**bearer(token), "content-type": "application/cloudevents+json"}
        ids.add((await gate.http.post(EVENTS, json=event, headers=headers)).json()["event_id"])
    assert len(ids) == 4
    assert server.execute("XLEN", HELLO.stream) == 4


# --- without keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "mode", "needed"),
    [
        ("127.0.0.1", "auto", False),
        ("localhost", "auto", False),
        ("::1", "auto", False),
        ("0.0.0.0", "auto", True),
        ("::", "auto", True),
        ("10.0.0.1", "auto", True),
        ("127.0.0.1", "required", True),
        ("0.0.0.0", "off", False),
    ],
)
def test_keys_are_needed_beyond_loopback(host, mode, needed):
    assert auth.needs_keys(GatewaySettings(host=host, auth=mode)) is needed


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8800"}, 202),
        ({"host": "[::1]:8800"}, 202),
        ({"host": "evil.example"}, 403),
        ({"host": "["}, 403),
        ({"host": "[::1"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:8800"}, 202),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "https://app.example"}, 202),
    ],
)
async def test_a_page_elsewhere_cannot_ask_in_its_users_place(valkey_url, headers, status):
    async with gateway_in_process(valkey_url, HELLO, cors="https://app.example") as gate:
        done = await post(gate, headers)
        assert done.status_code == status, done.text


async def test_an_allowed_origin_may_read_the_answer(valkey_url):
    async with gateway_in_process(valkey_url, HELLO, cors="https://app.example, https://b.example/") as gate:
        asked = {"origin": "https://b.example", "access-control-request-method": "POST"}
        flight = await gate.http.options(EVENTS, headers=asked)
        assert flight.headers["access-control-allow-origin"] == "https://b.example"
        refused = await gate.http.get("/v1/nothing", headers={"origin": "https://app.example"})
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        stranger = await gate.http.get("/v1/nothing", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in stranger.headers


async def test_unknown_ids_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(auth, "REMEMBERED", 3)

    class Keys:
        async def get(self, key_id: str) -> None:
            return None

    made = Auth(Keys(), GatewaySettings(auth="required"))
    for number in range(10):
        await made._key(str(number))
    assert len(made._known) <= 3
