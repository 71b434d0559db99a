"""Runs over HTTP: what is told of one, lists and their pages, cancelling; another tenant sees nothing of it."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from typing import Any

import pytest

from runtime.broker.outcome import Completed, Publication
from runtime.gateway import auth, telling
from runtime.gateway.routes_known import keys_of
from shared_models.result import RunResult
from tests.contract.gateway.test_auth import bearer, make_key
from tests.support.gateway import InProcess, gateway_in_process, route_entry
from tests.support.hand import Hand, raw

FIRST, SECOND = route_entry("a"), route_entry("b")


@pytest.fixture
async def gate(broker_url: str):
    async with gateway_in_process(broker_url, FIRST, SECOND) as made:
        yield made


async def post(gate: InProcess, route: str = "a", **more: Any) -> str:
    done = await gate.http.post(f"/v1/routes/{route}/events", json={"input_value": "x"}, **more)
    assert done.status_code == 202, done.text
    return str(done.json()["event_id"])


async def listed(gate: InProcess, **params: Any) -> list[str]:
    """All that a filter finds, page by page."""
    found: list[str] = []
    while True:
        page = await gate.http.get("/v1/runs", params=params)
        assert page.status_code == 200, page.text
        found += [run["event_id"] for run in page.json()["runs"]]
        if page.json()["next"] is None:
            return found
        params["cursor"] = page.json()["next"]


async def test_a_run_from_its_queue_to_its_result(gate):
    event = await post(gate)
    queued = (await gate.http.get(f"/v1/runs/{event}")).json()
    assert (queued["status"], queued["route"], queued["attempts"]) == ("queued", "a", 0)
    assert queued["links"] == {k: f"/v1/runs/{event}{v}" for k, v in LINKS.items()}
    hand = await Hand.ready(gate.gateway.broker)
    attempt = await hand.begin(await hand.one())
    running = (await gate.http.get(f"/v1/runs/{event}")).json()
    assert (running["status"], running["worker"], list(running["timings"])) == ("running", "w1", ["queued_ms"])
    await hand.complete(attempt, "fine")
    done = (await gate.http.get(f"/v1/runs/{event}", params={"route": "a"})).json()
    assert (done["status"], done["result"]["text"], done["attempts"]) == ("completed", "fine", 1)
    assert set(done["timings"]) == {"queued_ms", "running_ms", "total_ms"}
    assert done["ended_at"] - done["queued_at"] == done["timings"]["total_ms"]


LINKS = {"self": "", "events": "/events", "cancel": "/cancel"}


async def test_a_dead_letter_is_told(gate):
    event = await post(gate)
    hand = await Hand.ready(gate.gateway.broker)
    await hand.bury(await hand.begin(await hand.one()))
    told = (await gate.http.get(f"/v1/runs/{event}")).json()
    assert (told["status"], told["dead_letter"]["code"]) == ("dead_lettered", "run_failed")
    assert told["dead_letter"]["id"]


async def test_an_unknown_run_and_an_unknown_route(gate):
    for path, code in (
        ("/v1/runs/none", "run_not_found"),
        ("/v1/runs/a%2Fb%20c", "run_not_found"),
        ("/v1/runs/none?route=zzz", "route_not_found"),
        ("/v1/runs?route=zzz", "route_not_found"),
    ):
        done = await gate.http.get(path)
        assert (done.status_code, done.json()["code"]) == (404, code), path
    assert (await gate.http.post("/v1/runs/none/cancel")).status_code == 404
    for query in ("cursor=x", "since=yesterday", "status=lost", "limit=0"):
        assert (await gate.http.get(f"/v1/runs?{query}")).status_code == 422, query


async def test_an_id_may_hold_anything(gate):
    """Producers choose their ids."""
    event = "urn:x/1 ü/cancel?"
    keys = (gate.gateway.broker, "HSET", f"hr:{{{FIRST.stream}}}:headrace:run:{event}")
    await raw(*keys, "status", "completed", "route", "a")
    told = await gate.http.get("/v1/runs/urn%3Ax%2F1%20%C3%BC%2Fcancel%3F")
    assert (told.status_code, told.json()["event_id"]) == (200, event)


async def test_what_grew_from_a_run(gate):
    event = await post(gate)
    hand = await Hand.ready(gate.gateway.broker)
    attempt = await hand.begin(await hand.one())
    sent = Publication(SECOND.stream, "child", (("event_id", "child"), ("parent_id", event), ("payload", "{}")))
    other = Publication("elsewhere", "leaf", (("event_id", "leaf"),))
    await hand.settle(attempt, Completed(RunResult(text="x"), (sent, other)))
    told = (await gate.http.get(f"/v1/runs/{event}?lineage=true")).json()
    assert (told["lineage"], told["lineage_complete"]) == ([], True)  # it has not begun
    child = await Hand.ready(gate.gateway.broker, keys=keys_of(SECOND))
    await child.begin(await child.one())
    (grown,) = (await gate.http.get(f"/v1/runs/{event}?lineage=true")).json()["lineage"]
    assert (grown["event_id"], grown["status"], grown["links"]) == ("child", "running", {"self": "/v1/runs/child"})


async def test_lists_are_filtered_and_paged(gate):
    events = [await post(gate, route, params={"session_id": s}) for route in "ab" for s in ("s1", "s2", "s2")]
    everything = await listed(gate, limit=4)
    assert (sorted(everything), len(everything)) == (sorted(events), 6)
    assert sorted(await listed(gate, route="a", limit=2)) == sorted(events[:3])
    assert sorted(await listed(gate, session_id="s2", limit=3)) == sorted([*events[1:3], *events[4:]])
    assert (await gate.http.post(f"/v1/runs/{events[0]}/cancel")).json() == {
        "event_id": events[0],
        "route": "a",
        "status": "cancelled",
    }
    assert await listed(gate, status="cancelled") == [events[0]]
    record = (await gate.http.get(f"/v1/runs/{events[5]}")).json()
    late = record["queued_at"]
    assert events[5] in await listed(gate, since=str(late))
    assert await listed(gate, until=str(late - 100_000)) == []
    assert await listed(gate, since="2099-01-01T00:00:00Z") == []


async def test_cancelling(gate):
    event = await post(gate)
    hand = await Hand.ready(gate.gateway.broker)
    attempt = await hand.begin(await hand.one())
    asked = await gate.http.post(f"/v1/runs/{event}/cancel")
    assert (asked.status_code, asked.json()["status"]) == (202, "asked")
    await hand.retry(attempt)
    assert (await gate.http.get(f"/v1/runs/{event}")).json()["status"] == "cancelled"
    again = await gate.http.post(f"/v1/runs/{event}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "run_ended")


async def test_a_tenant_sees_its_own_runs_only(broker_url: str):
    async with gateway_in_process(broker_url, FIRST, auth="required") as gate:
        red, _ = await make_key(gate, "send", "read", tenant="red")
        blue, _ = await make_key(gate, "admin", tenant="blue")
        root, _ = await make_key(gate, "read")
        sender, _ = await make_key(gate, "send")
        mine = await post(gate, headers=bearer(red))
        theirs = await post(gate, headers=bearer(blue))
        nobodys = await post(gate, headers=bearer(sender))
        unknown = await gate.http.get("/v1/runs/0", headers=bearer(red))
        for event in (theirs, nobodys):
            for done in (
                await gate.http.get(f"/v1/runs/{event}", headers=bearer(red)),
                await gate.http.get(f"/v1/runs/{event}/events", headers=bearer(red)),
                await gate.http.post(f"/v1/runs/{event}/cancel", headers=bearer(red)),
            ):
                assert done.status_code == 404
                if done.request.url.path == f"/v1/runs/{event}":
                    differs = {"instance", "detail"}
                    assert {k: v for k, v in done.json().items() if k not in differs} == {
                        k: v for k, v in unknown.json().items() if k not in differs
                    }
        assert (await gate.http.get(f"/v1/runs/{mine}", headers=bearer(red))).status_code == 200

        async def seen(token: str, **params: str) -> list[str]:
            page = await gate.http.get("/v1/runs", params=params, headers=bearer(token))
            return sorted(run["event_id"] for run in page.json()["runs"])

        assert (await seen(red), await seen(blue)) == ([mine], [theirs])
        assert await seen(root) == sorted([mine, theirs, nobodys])
        assert await seen(root, tenant_id="blue") == [theirs]
        forbidden = await gate.http.get("/v1/runs?tenant_id=blue", headers=bearer(red))
        assert (forbidden.status_code, forbidden.json()["code"]) == (403, "tenant_forbidden")
        for scope, method, path in ((sender, "GET", f"/v1/runs/{mine}"), (root, "POST", f"/v1/runs/{mine}/cancel")):
            done = await gate.http.request(method, path, headers=bearer(scope))
            assert (done.status_code, done.json()["code"]) == (403, "scope_missing")
        assert (await gate.http.post(f"/v1/runs/{mine}/cancel", headers=bearer(red))).status_code == 200


async def test_a_made_up_cursor_shows_nothing_of_another_tenant(broker_url: str):
    async with gateway_in_process(broker_url, FIRST, auth="required") as gate:
        red, _ = await make_key(gate, "send", "read", tenant="red")
        blue, _ = await make_key(gate, "admin", tenant="blue")
        mine = await post(gate, headers=bearer(red))
        theirs = await post(gate, headers=bearer(blue))
        for event, key in ((mine, red), (theirs, blue)):
            assert (await gate.http.post(f"/v1/runs/{event}/cancel", headers=bearer(key))).status_code == 200
        cursor = base64.urlsafe_b64encode(zlib.compress(json.dumps([["a", theirs, "0-0"]]).encode())).decode()
        for key, kinds in ((red, ["end"]), (blue, ["queued", "cancelled", "end"])):
            event = mine if key == red else theirs
            headers = {**bearer(key), "last-event-id": cursor}
            done = await gate.http.get(f"/v1/runs/{event}/events?follow=lineage", headers=headers)
            told = [line.removeprefix("event: ") for line in done.text.splitlines() if line.startswith("event: ")]
            assert told == kinds
        for wrong in ("x", "eJw", cursor[:-9]):
            headers = {**bearer(red), "last-event-id": wrong}
            assert (await gate.http.get(f"/v1/runs/{mine}/events?follow=lineage", headers=headers)).status_code == 422


async def test_a_duplicate_does_not_show_another_tenants_result(gate):
    """Two producers of different tenants may use one key in their streams: the second is a duplicate, and no reader."""
    broker = gate.gateway.broker
    keys = keys_of(FIRST)
    result = '{"text":"secret","outputs":[]}'
    await raw(broker, "HSET", keys.run("first"), "status", "completed", "tenant_id", "red", "result", result)
    for tenant, shown in (("blue", False), ("red", True)):
        record = ("status", "completed", "tenant_id", tenant, "duplicate_of", "first")
        await raw(broker, "HSET", keys.run("second"), *record)
        told = (await gate.http.get("/v1/runs/second")).json()
        assert ("result" in told) is shown


HUGE = (
    "99999999999999999999-0",
    "18446744073709551615-18446744073709551615",
    "18446744073709551616",
    "1-9" + "9" * 18,
    f"1-{2**64}~",
)


@pytest.mark.parametrize("last", HUGE)
async def test_a_line_that_redis_would_not_take_is_the_clients_mistake(gate, last):
    event = await post(gate)
    for params, text in (({}, last), ({"follow": "lineage"}, packed(json.dumps([["a", event, last]])))):
        done = await gate.http.get(f"/v1/runs/{event}/events", params=params, headers={"last-event-id": text})
        assert (done.status_code, done.json()["code"]) == (422, "request_invalid")


CURSORS = (
    "[" * 60_000,
    '[["a", "\\ud800", "0-0"]]',
    '[["a", 5, "0-0"]]',
    '[["a", "\\u0000", "0-0"]]',
    '["abc"]',
    '{"abc": 1}',
)


@pytest.mark.parametrize("text", CURSORS)
async def test_a_lineages_cursor_that_was_made_up_is_refused(gate, text):
    event = await post(gate)
    headers = {"last-event-id": packed(text)}
    done = await gate.http.get(f"/v1/runs/{event}/events?follow=lineage", headers=headers)
    assert (done.status_code, done.json()["code"]) == (422, "request_invalid")


@pytest.mark.parametrize(
    "text", ["[" * 1400, '[true, "a", "b"]', '[-1, "a", "b"]', f'[{"9" * 400}, "a", "b"]', "5", "[]"]
)
async def test_a_lists_cursor_that_was_made_up_is_refused(gate, text):
    done = await gate.http.get("/v1/runs", params={"cursor": base64.urlsafe_b64encode(text.encode()).decode()})
    assert (done.status_code, done.json()["field"]) == (422, "cursor")


async def test_who_may_no_longer_is_told_nothing_more(broker_url: str, monkeypatch):
    monkeypatch.setattr(telling, "HEARTBEAT", 0.02)
    monkeypatch.setattr(auth, "FRESH", -1.0)
    async with gateway_in_process(broker_url, FIRST, auth="required") as gate:
        revoked, key = await make_key(gate, "admin")
        good, _ = await make_key(gate, "admin")
        event = await post(gate, headers=bearer(good))

        async def follow(token: str) -> str:
            return (await gate.http.get(f"/v1/runs/{event}/events", headers=bearer(token))).text

        cut, whole = (asyncio.create_task(follow(token)) for token in (revoked, good))
        async with asyncio.timeout(10):
            while sum(len(them) for part in gate.gateway.following._parts for them in part.feeds.values()) < 2:
                await asyncio.sleep(0)
            await gate.gateway.broker.api_keys.revoke(key.id)
            assert "event: queued" in await cut
            assert "event: end" not in await cut
            await gate.http.post(f"/v1/runs/{event}/cancel", headers=bearer(good))
            assert (await whole).endswith("event: end\ndata: {}\n\n")


def packed(text: str) -> str:
    return base64.urlsafe_b64encode(zlib.compress(text.encode())).decode()
