"""A flow that asks a person, and goes on when no process lives any more that ran it; and the command line for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from runtime.broker.keys import RouteKeys
from shared_models.result import Decision, RunRecord
from tests.support import command, flows
from tests.support.harness import DEADLINE, Client, client, running, worker_settings, write_flow
from tests.support.provider import Say, StubProvider, ToolCall
from tests.support.real import SharedEngine, put
from tests.support.servers import RedisServer, valkey_binary

ASKS = RouteKeys("flows:asks", "headrace")
CAREFUL = RouteKeys("flows:careful", "headrace")
START = 180.0
"""Seconds that a worker may take until it is ready: it imports the engine, beside whatever else runs here."""


async def asked(c: Client, keys: RouteKeys, event: str) -> RunRecord:
    """The record of a run that waits, as soon as it does."""
    after = "0-0"
    async with asyncio.timeout(DEADLINE):
        while True:
            record = await c.broker.runs.get(keys, event)
            if record is not None and record.pause is not None:
                return record
            for line in await c.broker.runs.feed(keys, event, after=after, block=DEADLINE):
                after = line.id


@pytest.mark.timeout(2 * START)
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.filterwarnings("ignore")  # what the engine's packages warn of is not ours to mend
async def test_resumed_after_every_process_was_restarted_it_takes_the_right_branch(
    provider: StubProvider, engine: SharedEngine, tmp_path: Path
) -> None:
    folder, home = tmp_path / "flows", tmp_path / "home"
    home.mkdir()
    put(folder, "asks", flows.asks())
    put(folder, "careful", flows.careful_agent(), variables={"OPENAI_COMPATIBLE_BASE_URL": provider.url})
    provider.script(ToolCall("evaluate_expression", {"expression": "20+22"}), Say("done"))
    words = ("worker", "--flows", str(folder))
    with RedisServer(valkey_binary(), persistent=True) as server:
        environ = {"REDIS_URL": server.url, "HEADRACE_WORKER__CHECKPOINT_KEY": "a long random text"}
        with command.running(*words, home=home, **environ) as process:
            await asyncio.to_thread(process.wait_for, "ready", timeout=START)
            async with client(server.url) as c:
                yes, no = [await c.send(ASKS.stream, {"input_value": "may I?", "session_id": "s"}) for _ in range(2)]
                sum_ = await c.send(CAREFUL.stream, {"input_value": "20+22?"})
                for keys, event in ((ASKS, yes), (ASKS, no), (CAREFUL, sum_)):
                    assert (await asked(c, keys, event)).attempts == 0
            os.killpg(process.pid, signal.SIGKILL)
        server.kill()
        server.start()
        settings = worker_settings(checkpoint_key=SecretStr("newer, a long random text"))
        async with running(server.url, folder, engine=engine, settings=settings), client(server.url) as c:
            decide = ("runs", "resume", yes, "--decision", "approve", "--flows", str(folder))
            done = await asyncio.to_thread(command.headrace, *decide, home=home, REDIS_URL=server.url)
            assert done.code == 0, done
            await c.broker.pauses.resume(ASKS, no, Decision(action_id="reject"))
            await c.broker.pauses.resume(CAREFUL, sum_, Decision(action_id="approve"))
            results = [await c.run(ASKS, yes), await c.run(ASKS, no), await c.run(CAREFUL, sum_)]
            said = await c.broker.chat.load(ASKS, tenant=None, session="s")
    assert [run.result and run.result.text for run in results] == ["approve: may I?", "reject: may I?", "done"]
    assert [run.attempts for run in results] == [1, 1, 1]
    assert "42" in str(provider.chats[-1].messages[-1]["content"])
    texts = [str(message["text"]) for message in said]
    assert sorted(texts) == ["approve: may I?", "may I?", "may I?", "reject: may I?"], "committed once"


def test_the_command_line_shows_what_is_asked_and_takes_the_decision(tmp_path: Path, server_url: str) -> None:
    folder = tmp_path / "flows"
    write_flow(folder, "asks")
    environ = {"REDIS_URL": server_url, "HEADRACE_FLOWS": str(folder)}

    def headrace(*words: str, code: int = 0) -> command.Done:
        done = command.in_process(*words, **environ)
        assert done.code == code, done
        return done

    def until_waiting(event: str) -> None:
        asyncio.run(_until_waiting(server_url, event))

    with command.worker(server_url, folder, tmp_path):
        ask: dict[str, Any] = {"prompt": "Pay 10?", "options": ["approve", "reject"]}
        payload = json.dumps({"input_value": "hi", "ask": [ask]})
        event = headrace("send", "asks", "--payload", payload).out.strip()
        until_waiting(event)
        assert "Pay 10?" in headrace("runs", "list", "--status", "waiting").out
        shown = headrace("runs", "show", event)
        assert "Pay 10?" in shown.out
        assert "approve, reject" in shown.out
        assert f"headrace runs resume {event} --decision approve" in shown.err
        refused = headrace("runs", "resume", event, "--decision", "maybe", code=1)
        assert "approve, reject" in refused.err
        headrace("runs", "resume", event, "-d", "approve", "--value", "nonsense", code=2)
        headrace("runs", "resume", "unknown", "-d", "approve", code=1)
        resumed = headrace("runs", "resume", event, "-d", "reject", "--value", 'why={"a": 1}', "--json")
        assert json.loads(resumed.out)["event_id"] == event
        headrace("runs", "resume", event, "-d", "approve", code=1)
        done = asyncio.run(_ended(server_url, event))
        assert done.result is not None
        assert done.result.text == "hi reject"


async def _until_waiting(url: str, event: str) -> None:
    async with client(url) as c:
        await asked(c, ASKS, event)


async def _ended(url: str, event: str) -> RunRecord:
    async with client(url) as c:
        return await c.run(ASKS, event)
