"""The clients against a gateway that is a function: what is sent, what is tried again, what is an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from runtime.client import AsyncClient, Client, GatewayError, GatewayUnavailable, protocol

Handler = Callable[[httpx.Request], httpx.Response]

RUN = {"event_id": "e1", "route": "a", "stream": "flows:a", "status": "completed", "links": {}, "timings": {}}
ACCEPTED = {"event_id": "e1", "root_id": "e1", "route": "a", "status_url": "/v1/runs/e1", "events_url": "x", "new": 1}
PROBLEM = {"type": "urn:x", "title": "x", "status": 429, "code": "route_limited", "detail": "too many"}


class Both:
    """The same call with each client."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    async def __call__(self, handler: Handler, name: str, *args: Any, **more: Any) -> Any:
        client = {"patience": more.pop("patience", 60.0), "api_key": "hr_x_y"}
        transport = httpx.MockTransport(handler)
        if self._kind == "async":
            async with AsyncClient("http://gateway", transport=transport, **client) as ask:
                made = getattr(ask, name)(*args, **more)
                return [one async for one in made] if hasattr(made, "__aiter__") else await made

        def call() -> Any:
            with Client("http://gateway", transport=transport, **client) as ask:
                made = getattr(ask, name)(*args, **more)
                return list(made) if hasattr(made, "__next__") else made

        return await asyncio.to_thread(call)


@pytest.fixture(params=["async", "sync"])
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Both:
    monkeypatch.setattr(protocol, "pause", lambda tries, error=None: 0.0)
    return Both(request.param)


async def test_a_send_that_got_no_answer_is_repeated_with_the_same_key(both):
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if len(seen) == 1:
            raise httpx.ReadError("gone")
        if len(seen) == 2:
            return httpx.Response(429, json=PROBLEM, headers={"retry-after": "1"})
        return httpx.Response(202, json=ACCEPTED)

    done = await both(answer, "send", "a b", {"x": "ü"}, session_id="s", stream=True)
    assert (done.event_id, done.duplicate) == ("e1", False)
    assert {request.headers["idempotency-key"] for request in seen} == {seen[0].headers["idempotency-key"]}
    assert str(seen[0].url) == "http://gateway/v1/routes/a%20b/events?session_id=s&stream=true"
    assert seen[0].headers["authorization"] == "Bearer hr_x_y"
    await both(answer, "send", "a", "text ü", key="k-1")
    assert (seen[-1].headers["idempotency-key"], seen[-1].content.decode()) == ("k-1", "text ü")


async def test_a_refusal_is_an_error_with_the_gateways_code(both):
    with pytest.raises(GatewayError, match="another request") as refused:
        await both(
            lambda _: httpx.Response(
                422, json={**PROBLEM, "code": "idempotency_key_reused", "detail": "another request"}
            ),
            "send",
            "a",
            {},
        )
    assert (refused.value.status, refused.value.code) == (422, "idempotency_key_reused")
    with pytest.raises(GatewayError, match="answered 500"):
        await both(lambda _: httpx.Response(500, text="<html>"), "get", "e1")


async def test_patience_ends(both):
    with pytest.raises(GatewayUnavailable, match="too many") as gone:
        await both(
            lambda _: httpx.Response(429, json=PROBLEM, headers={"retry-after": "7"}), "get", "e1", patience=-1.0
        )
    assert (gone.value.retry_after, gone.value.code) == (7.0, "route_limited")

    def broken(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    for name in ("get", "cancel", "stream"):
        with pytest.raises(GatewayUnavailable, match="cannot be reached"):
            await both(broken, name, "e1", patience=-1.0)


def test_pauses_follow_what_the_gateway_asks_for():
    asked = GatewayUnavailable("x", retry_after=3.0)
    assert protocol.pause(0, asked) == 3.0
    assert protocol.pause(0, GatewayUnavailable("x", retry_after=900.0)) == protocol.LONGEST_PAUSE
    assert all(0.05 <= protocol.pause(n) <= 5.0 for n in range(40))


async def test_a_stream_goes_on_where_it_was_broken_off(both):
    asked: list[str | None] = []
    parts = [
        ': hi\n\nid: 1-1\nevent: queued\ndata: {"event_id":"e1","route":"a","at":5}\n\nid: 1-2\nevent: sta',
        'id: 1-2\nevent: token\ndata: {"event_id":"e1","route":"a","at":6,"text":"hi"}\n\n'
        "event: unavailable\ndata: {}\n\n",
        'event: gap\ndata: {"after":"1-2","next":null,"event_id":"e1","route":"a"}\n\nevent: end\ndata: {}\n\n',
    ]

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("last-event-id"))
        return httpx.Response(200, text=parts[len(asked) - 1])

    found = await both(answer, "stream", "e1", lineage=True)
    assert [(one.type, one.id, one.at, one.data) for one in found] == [
        ("queued", "1-1", 5, {}),
        ("token", "1-2", 6, {"text": "hi"}),
        ("gap", None, None, {"after": "1-2", "next": None}),
    ]
    assert asked == [None, "1-1", "1-2"]
    assert await both(lambda _: httpx.Response(204), "stream", "e1", after="1-9") == []


async def test_waiting(both):
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return httpx.Response(200, text="event: end\ndata: {}\n\n")
        return httpx.Response(200, json=RUN)

    assert (await both(answer, "wait", "e1", seconds=5)).status.value == "completed"


async def test_lists_are_read_page_by_page(both):
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url.query, "ascii"))
        after = request.url.params.get("cursor")
        return httpx.Response(200, json={"runs": [RUN] * (2 if after is None else 1), "next": None if after else "c"})

    found = await both(answer, "list", count=7, route="a", status=None)
    assert (len(found), asked) == (3, ["route=a&limit=7", "route=a&limit=5&cursor=c"])
