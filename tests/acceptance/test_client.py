"""The clients and the commands that use them, against a gateway as a process and a worker behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from runtime.client import AsyncClient, Client, GatewayError
from tests.support.command import in_process, worker
from tests.support.gateway import GatewayProcess, gateway_process
from tests.support.harness import running, write_flow
from tests.support.servers import RedisServer
from tests.support.steps import StepEngine

DEADLINE = 20


@pytest.fixture(scope="module")
def gateway(valkey_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway_process(valkey_server.url, tmp_path_factory.mktemp("gateway")) as process:
        yield process


@pytest.fixture
async def engine(server_url, tmp_path):
    write_flow(tmp_path / "flows", "a")
    made = StepEngine()
    async with running(server_url, tmp_path / "flows", engine=made):
        yield made


async def test_send_follow_cancel_wait(gateway, engine):
    async with AsyncClient(gateway.url) as ask:
        sent = await ask.send("a", {"steps": 1, "wait": True}, key="k1", stream=True)
        again = await ask.send("a", {"steps": 1, "wait": True}, key="k1", stream=True)
        assert (again.event_id, again.duplicate) == (sent.event_id, True)
        assert await ask.wait(sent.event_id, seconds=0.2) is None
        async with asyncio.timeout(DEADLINE):
            kinds = []
            async for event in ask.stream(sent.event_id):
                kinds.append(event.type)
                if event.type == "component_started":
                    assert await ask.cancel(sent.event_id) == "asked"
        assert kinds == ["queued", "started", "component_started", "cancelled"]
        with pytest.raises(GatewayError, match="ended already") as refused:
            await ask.cancel(sent.event_id)
        assert refused.value.code == "run_ended"
        other = await ask.send("a", "text")
        record = await ask.wait(other.event_id, seconds=DEADLINE)
        assert record is not None
        assert record.result is not None
        assert [one.event_id async for one in ask.list(status="completed")] == [other.event_id]

    def plainly() -> list[str]:
        with Client(gateway.url) as ask:
            done = ask.send("a", {"steps": 2, "tokens": 1}, stream=True)
            assert ask.wait(done.event_id, seconds=DEADLINE) is not None
            assert ask.get(done.event_id).status.value == "completed"
            return [event.type for event in ask.stream(done.event_id)]

    assert (await asyncio.to_thread(plainly))[-1] == "completed"


def test_commands_go_through_a_gateway(gateway, server_url, tmp_path):
    write_flow(tmp_path / "flows", "a")
    through = {"HEADRACE_GATEWAY_URL": gateway.url}
    with worker(server_url, tmp_path / "flows", tmp_path), Client(gateway.url) as ask:
        done = in_process("send", "a", "--input", "hi", "--wait", "20", "--gateway", gateway.url)
        assert (done.code, done.out) == (0, "hi\n"), done.err
        first, second = [
            json.loads(in_process("send", "a", "--payload", '{"sleep": 60}', "--json", **through).out)["event_id"]
            for _ in range(2)
        ]
        for event in (first, second):
            for line in ask.stream(event):
                if line.type == "started":
                    break
        asked = in_process("runs", "cancel", first, **through)
        assert (asked.code, asked.out) == (0, f"{first} runs, and is told to stop\n"), asked.err
        asked = in_process("runs", "cancel", second, "--redis-url", server_url)
        assert (asked.code, "told to stop" in asked.out) == (0, True), asked.err
        for event in (first, second):
            record = ask.wait(event, seconds=DEADLINE)
            assert record is not None
            assert record.status.value == "cancelled"
        late = in_process("send", "a", "--key", "k", "--payload", "{}", "--wait", "20", "--json", **through)
        assert json.loads(late.out)["status"] == "completed"
        shown = in_process("runs", "show", first, **through)
        assert (shown.code, "cancelled" in shown.out) == (1, True), shown
        for redis in ((), ("--redis-url", server_url)):
            again = in_process("runs", "cancel", first, *redis, **through)
            assert (again.code, "ended already" in again.err) == (1, True)
        listed = in_process("runs", "list", "--status", "cancelled", "--json", **through)
        assert {record["event_id"] for record in json.loads(listed.out)} == {first, second}
        nowhere = in_process("runs", "show", "none", **through)
        assert (nowhere.code, "no run of event 'none'" in nowhere.err) == (1, True)
    both = in_process("runs", "show", "x", "--gateway", gateway.url, "--redis-url", "redis://127.0.0.1:1")
    assert both.code == 2
    away = in_process("runs", "cancel", "x", "--gateway", "ftp://x")
    assert (away.code, "begins with http" in away.err) == (2, True)
