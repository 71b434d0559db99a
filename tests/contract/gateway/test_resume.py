"""Decisions over HTTP for runs that wait for a person."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from shared_models.result import Decision
from tests.contract.gateway.test_auth import bearer, make_key
from tests.support.gateway import InProcess, gateway_in_process, route_entry
from tests.support.hand import Hand, raw

ROUTE = route_entry("a")


@pytest.fixture
async def gate(broker_url: str):
    async with gateway_in_process(broker_url, ROUTE, route_entry("b")) as made:
        yield made


async def waiting(gate: InProcess, *, wait: float = 100.0, **more: Any) -> tuple[str, Hand]:
    """A run that waits."""
    done = await gate.http.post("/v1/routes/a/events", json={"input_value": "x"}, **more)
    assert done.status_code == 202, done.text
    hand = await Hand.ready(gate.gateway.broker)
    await hand.suspend(await hand.begin(await hand.one()), wait=wait)
    return str(done.json()["event_id"]), hand


async def decide(gate: InProcess, event: str, decision: str = "approve", **more: Any) -> httpx.Response:
    headers = more.pop("headers", None)
    return await gate.http.post(
        f"/v1/runs/{event}/resume",
        json={"decision": decision, **more},
        headers=headers,
        params=more.pop("params", None),
    )


def code(done: httpx.Response) -> tuple[int, str]:
    assert done.headers["content-type"] == "application/problem+json"
    return done.status_code, done.json()["code"]


async def test_a_decision_lets_the_run_go_on(gate):
    event, hand = await waiting(gate)
    done = await decide(gate, event, "reject", values={"message": "nö"}, request_id="q:1")
    assert (done.status_code, done.json()["status"], done.json()["event_id"]) == (200, "queued", event)
    grant = (await hand.begin(await hand.one(), event)).grant
    assert Decision.model_validate_json(grant.decision) == Decision(action_id="reject", values={"message": "nö"})


async def test_the_first_decision_counts_and_may_be_repeated(gate):
    event, _ = await waiting(gate)
    for _ in range(2):
        assert (await decide(gate, event)).status_code == 200
    assert code(await decide(gate, event, "reject")) == (409, "already_decided")


async def test_what_is_refused_and_why(gate):
    event, hand = await waiting(gate)
    assert code(await decide(gate, event, "__expired__")) == (422, "decision_invalid")
    assert code(await decide(gate, event, request_id="q:0")) == (409, "not_waiting")
    assert code(await decide(gate, event, more=1)) == (422, "request_invalid")
    assert code(await gate.http.post(f"/v1/runs/{event}/resume", content=b"{")) == (422, "request_invalid")
    assert code(await decide(gate, "nobody")) == (404, "run_not_found")
    late, _ = await waiting(gate, wait=0.0)
    assert code(await decide(gate, late)) == (410, "pause_over")
    sent = (await gate.http.post("/v1/routes/b/events", json={})).json()["event_id"]
    assert code(await decide(gate, sent)) == (409, "not_waiting")
    assert await raw(hand.broker, "HGET", hand.keys.gate(event), "state") == b"waiting"


async def test_another_tenants_run_is_unknown(broker_url: str):
    async with gateway_in_process(broker_url, ROUTE, auth="required") as gate:
        (mine, _), (theirs, _) = [await make_key(gate, "send", tenant=tenant) for tenant in ("mine", "theirs")]
        event, _ = await waiting(gate, headers=bearer(mine))
        unknown = await decide(gate, "nobody", headers=bearer(theirs))
        foreign = await decide(gate, event, headers=bearer(theirs))
        assert code(foreign) == code(unknown) == (404, "run_not_found")
        assert foreign.json()["detail"].replace(event, "nobody") == unknown.json()["detail"]
        assert code(await decide(gate, event)) == (401, "unauthorized")
        reader, _ = await make_key(gate, "read", tenant="mine")
        assert code(await decide(gate, event, headers=bearer(reader))) == (403, "scope_missing")
        assert (await decide(gate, event, headers=bearer(mine))).status_code == 200
