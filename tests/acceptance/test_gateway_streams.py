"""The events of runs over HTTP, as they come: a gateway as a process, a worker behind it, clients that come and go."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from shared_models.result import RunEventType
from tests.support.followers import KEYS, asking, hands, sent, storm
from tests.support.gateway import GatewayProcess, gateway_process
from tests.support.harness import running, write_flow
from tests.support.servers import RedisServer, valkey_binary
from tests.support.sse import Sent, events, told
from tests.support.steps import StepEngine

DEADLINE = 20


@pytest.fixture(scope="module")
def gateway(valkey_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One for all tests here: what it knows, it knows from Redis."""
    with gateway_process(valkey_server.url, tmp_path_factory.mktemp("gateway")) as process:
        yield process


def kinds(found: list[Sent]) -> list[str]:
    return [one.kind for one in found]


async def test_a_run_is_told_from_its_queue_to_its_end(server_url, tmp_path, gateway):
    write_flow(tmp_path / "flows", "a", spec={"publish": [{"to": "flows:b"}]})
    write_flow(tmp_path / "flows", "b", spec={"publish": [{"to": "elsewhere"}]})
    engine = StepEngine()
    async with running(server_url, tmp_path / "flows", engine=engine), asking(gateway) as http:
        event = await sent(http, "a", steps=2, wait=True, tokens=5, stream=True)
        following = asyncio.create_task(told(http, f"/v1/runs/{event}/events"))
        lineage = asyncio.create_task(told(http, f"/v1/runs/{event}/events?follow=lineage"))
        await asyncio.wait_for(engine.begun[event].wait(), DEADLINE)
        engine.go.set()
        found = await asyncio.wait_for(following, DEADLINE)
        assert kinds(found)[:2] == ["queued", "started"]
        assert kinds(found)[-3:] == ["published", "completed", "end"]
        assert kinds(found).count("component_ended") == 2
        assert "".join(one.data["text"] for one in found if one.kind == "token") == "0 1 2 3 4 " * 2
        assert all(one.data["event_id"] == event and one.data["route"] == "a" for one in found[:-1])
        assert found[-3].data["published"] == found[-2].data["published"]
        assert found[-3].data["published"][0]["stream"] == "flows:b"
        whole = await asyncio.wait_for(lineage, DEADLINE)
        ends = [(one.data["route"], one.kind) for one in whole if one.kind == "completed"]
        assert ends == [("a", "completed"), ("b", "completed")]
        assert engine.streams == [True, True]
        for n, one in enumerate(whole[:-1]):  # from wherever it was broken off, the rest follows
            again = await told(http, f"/v1/runs/{event}/events?follow=lineage", last=one.id)
            assert [o.data for o in again] == ([o.data for o in whole[n + 1 :]] if n < len(whole) - 2 else [])
        for n, one in enumerate(found[:-1]):
            again = await told(http, f"/v1/runs/{event}/events", last=one.id)
            assert [o.data for o in again] == ([o.data for o in found[n + 1 :]] if n < len(found) - 2 else [])
        wrong = await http.get(f"/v1/runs/{event}/events", headers={"last-event-id": "x"})
        assert (wrong.status_code, wrong.json()["code"]) == (422, "request_invalid")


async def test_who_follows_hears_of_components_without_asking_for_tokens(server_url, tmp_path, gateway):
    write_flow(tmp_path / "flows", "a")
    engine = StepEngine()
    async with running(server_url, tmp_path / "flows", engine=engine), asking(gateway) as http:
        event = await sent(http, "a", steps=1, wait=True)
        await asyncio.wait_for(engine.begun[event].wait(), DEADLINE)
        async with http.stream("GET", f"/v1/runs/{event}/events") as response, asyncio.timeout(DEADLINE):
            async for one in events(response):
                if one.kind == "component_started":
                    cancelled = await http.post(f"/v1/runs/{event}/cancel")
                    assert cancelled.status_code == 202
                if one.kind == "end":
                    break
        assert (await http.get(f"/v1/runs/{event}")).json()["status"] == "cancelled"
        assert engine.effects == []


# --- runs that a test tells itself -----------------------------------------------------------------------------------


async def test_of_clients_that_break_off_again_and_again_none_loses_or_repeats_a_line(server_url, gateway):
    breaks, total = await asyncio.wait_for(storm(server_url, gateway, runs=10, lines=100), 60)
    assert (breaks > 20, total) == (True, 1010)


async def test_a_hundred_streams_take_one_connection_to_redis(valkey_server, server_url, gateway):
    async with hands(server_url) as worker, asking(gateway) as http:
        made = [await sent(http, "a", n=n) for n in range(100)]
        before = valkey_server.execute("INFO", "clients")["connected_clients"]
        opened = asyncio.Semaphore(0)

        async def follow(event: str) -> list[int]:
            async with http.stream("GET", f"/v1/runs/{event}/events") as response:
                found: list[int] = []
                async for one in events(response):
                    if one.kind == "queued":
                        opened.release()
                    if one.kind == "end":
                        return found
                    found += [one.data["n"]] if "n" in one.data else []
            return found

        following = [asyncio.create_task(follow(event)) for event in made]
        async with asyncio.timeout(DEADLINE):
            for _ in made:
                await opened.acquire()
        assert valkey_server.execute("INFO", "clients")["connected_clients"] - before < 20
        for event in made:
            await worker.tell(event, [(RunEventType.COMPONENT_ENDED, 7)])
            await worker.end(event)
        found = await asyncio.wait_for(asyncio.gather(*following), DEADLINE)
        assert found == [[7, -1]] * 100


async def test_lines_that_are_not_kept_any_more_are_told_as_a_gap(server_url, gateway):
    async with hands(server_url) as worker, asking(gateway) as http:
        event = await sent(http, "a")
        for start in range(0, 2000, 200):
            await worker.tell(event, [(RunEventType.TOKEN, n) for n in range(start, start + 200)])
        await worker.end(event)
        found = await told(http, f"/v1/runs/{event}/events")
        assert found[0].kind == "gap"
        assert found[0].data["after"] == "0-0"
        assert found[0].data["next"] == found[1].id
        numbers = [one.data["n"] for one in found if "n" in one.data]
        assert numbers[:-1] == list(range(numbers[0], 2000))


async def test_t29_without_redis_streams_and_waits_end_in_time(tmp_path):
    """A Redis that is lost leaves no caller waiting for ever: an answer or an end, and when to come again."""
    with RedisServer(valkey_binary()) as server, gateway_process(server.url, tmp_path) as alone:
        async with hands(server.url) as worker, asking(alone) as http:
            event = await sent(http, "a")
            opened = asyncio.Event()

            async def follow() -> list[Sent]:
                found = []
                async with http.stream("GET", f"/v1/runs/{event}/events") as response:
                    async for one in events(response):
                        found.append(one)
                        opened.set()
                return [one for one in found if one.kind]

            following = asyncio.create_task(follow())
            await asyncio.wait_for(opened.wait(), DEADLINE)
            waiting = asyncio.create_task(http.post("/v1/routes/a/events?wait=60s", json={"input_value": "x"}))
            async with asyncio.timeout(DEADLINE):
                while len((await worker.broker.runs.page([KEYS])).records) < 2:
                    await asyncio.sleep(0.01)
            server.kill()
            # It was accepted: a client that is told so does not send it once more.
            accepted = await asyncio.wait_for(waiting, DEADLINE)
            assert (accepted.status_code, accepted.headers["location"]) == (202, accepted.json()["status_url"])
            refused = await http.get(f"/v1/runs/{event}/events")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
            last = (await asyncio.wait_for(following, DEADLINE))[-1]
            assert (last.kind, last.data["retry_after"]) == ("unavailable", 2)


async def test_a_gateway_that_ends_lets_its_streams_go(server_url, tmp_path):
    with gateway_process(server_url, tmp_path) as alone:
        async with hands(server_url), asking(alone) as http:
            event = await sent(http, "a")
            async with http.stream("GET", f"/v1/runs/{event}/events") as response:
                kinds_seen = []
                async for one in events(response):
                    kinds_seen.append(one.kind or one.comment)
                    if one.kind == "queued":
                        alone.process._process.send_signal(signal.SIGTERM)
            assert kinds_seen[-1].startswith("the gateway is ending")
            assert await asyncio.to_thread(alone.process.wait, timeout=10) == 0
