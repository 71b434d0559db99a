"""Callbacks, with a real worker and a real receiver."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from pydantic import SecretStr
from standardwebhooks.webhooks import Webhook

from runtime.broker.keys import RouteKeys
from runtime.settings import CallbackSettings
from tests.support import command
from tests.support.gateway import gateway_in_process
from tests.support.harness import DEADLINE, client, running, worker_settings, write_flow
from tests.support.receiver import HANG, receiving

KEYS = RouteKeys("flows:a", "headrace")
CALLBACKS = RouteKeys("flows:a:callbacks", "headrace")
SECRET, OLD = "whsec_" + "c2VjcmV0LW9mLXRoZS10ZXN0cw==", "whsec_" + "YW5vdGhlci1vbGRlci1zZWNyZXQ="
SOON = ["10ms", "20ms", "30ms"]


@asynccontextmanager
async def worker(server, tmp_path, /, *, allow_private=True, secret=SECRET, timeout=5.0, **callback):
    write_flow(tmp_path / "flows", "a", spec={"retry": {"max_attempts": 1}, "callback": callback})
    given = CallbackSettings(secret=secret and SecretStr(secret), allow_private=allow_private, timeout=timeout)
    settings = worker_settings(probe_interval=0.3).model_copy(update={"callbacks": given})
    async with running(server, tmp_path / "flows", settings=settings), client(server) as c:
        yield c


async def until_blocked(c):
    """Why the callbacks wait, as soon as they do."""
    async with asyncio.timeout(DEADLINE):
        while True:
            (blocked,) = await c.broker.streams.blocked([CALLBACKS])
            if blocked is not None:
                return blocked
            await c.redis.xread({"nothing": "0-0"}, block=20)  # a look every 20 ms


def checked(request, *secrets):
    """The message, whose signature is good for each of the secrets."""
    for secret in secrets:
        Webhook(secret).verify(request.body, request.headers)
    return json.loads(request.body)


async def test_an_outcome_is_told_signed_and_once(server_url, tmp_path):
    async with (
        receiving() as receiver,
        worker(server_url, tmp_path, secret=f"{SECRET},{OLD}", url=receiver.url, delays=SOON) as c,
    ):
        for _ in range(3):
            await c.send("flows:a", {"input_value": "hi"}, event_id="e1", tenant_id="t", session_id="s")
        (request,) = await receiver.count(1)
        message = checked(request, SECRET, OLD)
        assert (message["type"], request.headers["content-type"]) == ("run.completed", "application/json")
        data = message["data"]
        assert (data["event_id"], data["route"], data["status"], data["tenant_id"]) == ("e1", "a", "completed", "t")
        assert data["result"]["text"] == "hi"
        assert abs(datetime.fromisoformat(message["timestamp"]) - datetime.now(UTC)) < timedelta(minutes=1)
        told = await c.run(CALLBACKS, request.headers["webhook-id"])
        assert (told.status, told.parent_id, told.root_id, told.tenant_id) == ("completed", "e1", "e1", "t")
        await c.send("flows:a", {"input_value": "last"}, event_id="e2")
        requests = await receiver.count(2)
        assert [json.loads(r.body)["data"]["event_id"] for r in requests] == ["e1", "e2"]
        assert not await c.redis.exists("flows:a:callbacks:results")


async def test_what_fails_is_tried_again_on_the_table_with_the_same_id_and_body(server_url, tmp_path):
    in_a_moment = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    script = [
        500,
        (429, "Retry-After: 1\r\n"),
        (503, f"Retry-After: {in_a_moment}\r\n"),
        (302, "Location: /x\r\n"),
        HANG,
    ]
    delays = ["10ms"] * 6
    async with (
        receiving(*script) as receiver,
        worker(server_url, tmp_path, url=receiver.url, delays=delays, timeout=0.5) as c,
    ):
        await c.send("flows:a", {"input_value": "hi"})
        requests = await receiver.count(6)
        assert len({(r.headers["webhook-id"], r.body) for r in requests}) == 1
        times = [int(r.headers["webhook-timestamp"]) for r in requests]
        assert times[2] >= times[1] + 1  # as the 429 has asked
        for request in requests:
            checked(request, SECRET)
        record = await c.run(CALLBACKS, requests[0].headers["webhook-id"])
        assert (record.status, record.attempts) == ("completed", 6)


async def test_after_the_table_s_end_it_is_a_dead_letter_that_can_be_requeued(server_url, tmp_path):
    async with (
        receiving(500, 500, 500) as receiver,
        worker(server_url, tmp_path, url=receiver.url, delays=["10ms", "10ms"]) as c,
    ):
        await c.send("flows:a", {"input_value": "hi"})
        (letter,) = await c.entries("flows:a:callbacks:dead_letter", 1)
        assert (letter["dl_route"], letter["dl_code"], letter["dl_attempts"]) == ("a:callbacks", "callback_failed", "3")
        assert letter["dl_reason"] == "127.0.0.1 answered 500"
        (listed,) = await c.broker.dead_letters.list("flows:a:callbacks:dead_letter")
        await c.broker.dead_letters.requeue(CALLBACKS, stream="flows:a:callbacks:dead_letter", dead_letter_id=listed.id)
        requests = await receiver.count(4)
        assert len({r.headers["webhook-id"] for r in requests}) == 1
        assert (await c.run(CALLBACKS, listed.event_id)).status == "completed"


async def test_410_gives_it_up_at_once_and_says_so(server_url, tmp_path):
    async with receiving(410) as receiver, worker(server_url, tmp_path, url=receiver.url, delays=SOON) as c:
        await c.send("flows:a", {"input_value": "hi"})
        (letter,) = await c.entries("flows:a:callbacks:dead_letter", 1)
        assert (letter["dl_code"], letter["dl_attempts"], len(receiver.requests)) == ("callback_gone", "1", 1)
        assert "410" in letter["dl_reason"]


async def test_a_dead_letter_is_told_too_and_so_is_what_becomes_of_it(server_url, tmp_path):
    async with receiving() as receiver, worker(server_url, tmp_path, url=receiver.url) as c:
        await c.send("flows:a", {"fail": "event"}, event_id="e")
        (letter,) = await c.entries("flows:a:dead_letter", 1)
        (listed,) = await c.broker.dead_letters.list("flows:a:dead_letter")
        fields = [(b"event_id", b"e"), (b"payload", b'{"input_value": "mended"}')]
        (first,) = await receiver.count(1)
        message = checked(first, SECRET)
        assert (message["type"], message["data"]["dead_letter"]["code"]) == ("run.dead_lettered", "echo_failed")
        assert "traceback" not in first.body.decode()
        await c.broker.dead_letters.requeue(KEYS, stream="flows:a:dead_letter", dead_letter_id=listed.id, fields=fields)
        _, second = await receiver.count(2)
        assert checked(second, SECRET)["type"] == "run.completed"
        assert second.headers["webhook-id"] != first.headers["webhook-id"]
        assert letter["dl_event_id"] == "e"


async def test_only_the_outcomes_that_were_asked_for(server_url, tmp_path):
    async with receiving() as receiver, worker(server_url, tmp_path, url=receiver.url, events=["dead_lettered"]) as c:
        done = await c.send("flows:a", {"input_value": "x"})
        await c.run(KEYS, done)
        failed = await c.send("flows:a", {"fail": "event"})
        (request,) = await receiver.count(1)
        assert json.loads(request.body)["data"]["event_id"] == failed


async def test_a_request_may_bring_a_url_where_the_route_says_so(server_url, tmp_path):
    async with (
        receiving() as own,
        receiving() as other,
        worker(server_url, tmp_path, url=own.url, allow_request=True),
        gateway_in_process(server_url) as gateway,
    ):
        answer = await gateway.http.post("/v1/routes/a/events", params={"callback": other.url}, json={"a": 1})
        assert answer.status_code == 202, answer.text
        (request,) = await other.count(1)
        assert checked(request, SECRET)["data"]["event_id"] == answer.json()["event_id"]
        assert not own.requests
        # Nobody may have the worker sign and send what they like.
        for route in ("a:callbacks", "a%3Acallbacks"):
            forged = await gateway.http.post(f"/v1/routes/{route}/events", json={"url": own.url, "message": {}})
            assert forged.status_code == 404
        for bad in (
            "ftp://x/",
            "http://",
            "http://u:p@x/",
            "http://x/\r\nA: b",
            "x" * 3000,
            "http://x:99999/",
            "http://x/#y",
        ):
            refused = await gateway.http.post("/v1/routes/a/events", params={"callback": bad}, json={"a": 1})
            assert refused.status_code == 422, bad


async def test_a_url_that_was_not_allowed_is_refused_by_gateway_and_worker(server_url, tmp_path):
    async with receiving() as own, receiving() as other, worker(server_url, tmp_path, url=own.url) as c:
        async with gateway_in_process(server_url) as gateway:
            answer = await gateway.http.post("/v1/routes/a/events", params={"callback": other.url}, json={"a": 1})
            assert (answer.status_code, answer.json()["code"]) == (403, "callback_forbidden")
        event = await c.send("flows:a", {"input_value": "x"}, callback_url=other.url)
        record = await c.run(KEYS, event)
        assert record.dead_letter.code == "callback_refused"
        await own.count(1)
        assert not other.requests


async def test_private_addresses_are_for_operators_who_say_so(server_url, tmp_path):
    async with (
        receiving() as own,
        worker(server_url, tmp_path, allow_private=False, url="https://127.0.0.1:1/x", allow_request=True) as c,
    ):
        # A request's is its own fault; the route's is the operator's, and waits until that is mended.
        await c.send("flows:a", {"input_value": "x"}, callback_url=f"https://127.0.0.1:{own.port}/")
        (letter,) = await c.entries("flows:a:callbacks:dead_letter", 1)
        assert letter["dl_code"] == "callback_refused"
        assert "HEADRACE_CALLBACKS__ALLOW_PRIVATE" in letter["dl_reason"]
        event = await c.send("flows:a", {"input_value": "y"})
        assert (await c.run(KEYS, event)).status == "completed"
        blocked = await until_blocked(c)
        assert blocked.code == "callback_refused"
        assert not own.requests


async def test_without_a_secret_nothing_is_sent_and_nothing_lost(server_url, tmp_path, monkeypatch):
    monkeypatch.delenv("SHOP_CALLBACK", raising=False)
    async with (
        receiving() as receiver,
        worker(server_url, tmp_path, secret=None, url=receiver.url, secrets=[{"env": "SHOP_CALLBACK"}]) as c,
    ):
        await c.send("flows:a", {"input_value": "x"})
        blocked = await until_blocked(c)
        assert (blocked.code, receiver.requests) == ("callback_secret_missing", [])
        monkeypatch.setenv("SHOP_CALLBACK", SECRET)
        (request,) = await receiver.count(1)
        checked(request, SECRET)


async def test_secrets_stand_nowhere(server_url, tmp_path, capsys):
    async with receiving(500) as receiver, worker(server_url, tmp_path, url=receiver.url, delays=SOON) as c:
        event = await c.send("flows:a", {"input_value": "x"})
        await receiver.count(2)
        await c.run(KEYS, event)
        for key in await c.redis.keys("*"):
            kind = await c.redis.type(key)
            shown = {
                "stream": c.redis.xrange,
                "hash": c.redis.hgetall,
                "string": c.redis.get,
            }.get(kind)
            if shown is not None:
                assert SECRET.removeprefix("whsec_") not in str(await shown(key)), key
    out = capsys.readouterr()
    for text in (out.out, out.err):
        assert SECRET.removeprefix("whsec_") not in text
        assert "in-the-url" not in text


@pytest.mark.parametrize(
    ("callback", "told"),
    [
        ({}, "write a url"), ("ftp://x", "not an http"), ({"url": "https://x", "on": ["a"]}, "unknown key"),
        ({"url": "https://u:p@x/"}, "password"), ({"url": "https://x", "secrets": ["whsec_x"]}, "secrets"),
        ({"url": "https://x", "delays": [5]}, "duration"), ({"url": "https://x", "delays": [1.5]}, "duration"),
    ],
)  # fmt: skip
def test_a_spec_s_mistakes_are_told(tmp_path, callback, told):
    from runtime.registry.scan import scan

    write_flow(tmp_path, "a", spec={"callback": callback})
    (problem,) = scan(tmp_path).problems
    assert told in problem.message


def test_a_url_alone_is_enough(tmp_path):
    from runtime.registry.scan import scan

    write_flow(tmp_path, "a", spec={"callback": "https://example.com/hook"})
    assert scan(tmp_path).routes["a"].spec.callback.url == "https://example.com/hook"


async def test_processes_deliver_them_and_commands_know_them(server_url, tmp_path):
    """A worker as a user starts it, for one route that has a process of its own."""
    async with receiving(410) as receiver, client(server_url) as c:
        write_flow(tmp_path / "flows", "a", spec={"isolation": "exclusive", "callback": receiver.url})
        write_flow(tmp_path / "flows", "b", spec={"callback": receiver.url})
        settings = {"HEADRACE_CALLBACKS__SECRET": SECRET, "HEADRACE_CALLBACKS__ALLOW_PRIVATE": "true"}
        with command.worker(server_url, tmp_path / "flows", tmp_path, "--only", "a", **settings):
            await c.send("flows:a", {"input_value": "hi"}, event_id="gone")
            await c.entries("flows:a:callbacks:dead_letter", 1)
            await c.send("flows:a", {"input_value": "hi"}, event_id="told")
            _, request = await receiver.count(2)
            assert checked(request, SECRET)["data"]["event_id"] == "told"
            routes = await c.broker.fleet.routes()
            assert {name: entry.internal for name, entry in routes.items()} == {"a": False, "a:callbacks": True}
        home = {"home": tmp_path, "REDIS_URL": server_url}
        listed = command.headrace("dlq", "list", "--route", "a:callbacks", "--json", **home)
        assert "callback_gone" in listed.out, listed.err
        assert "a:callbacks" in command.headrace("flows", "list", **home).out
        assert SECRET not in listed.out
