"""A worker's own secrets are no flow's, and a provider's key is in nothing that is kept, shown or logged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from runtime.broker.keys import RouteKeys
from shared_models.result import RunStatus
from tests.support import command, flows
from tests.support.flows import Field
from tests.support.harness import Client, client
from tests.support.provider import Status, StubProvider
from tests.support.real import REAL, put
from tests.support.servers import RedisServer

pytestmark = REAL

PASSWORD = "hunter2-of-redis"
CANARY = "canary5f2c9e77plain"
"""A provider's key that does not look like one: masking by shape would not find it."""

ENVIRONMENT = """
    def work(self) -> Message:
        import json, os, pathlib, subprocess
        seen = {
            "os.environ": dict(os.environ),
            "child": subprocess.run(["env"], capture_output=True, text=True).stdout,
            "proc": pathlib.Path("/proc/self/environ").read_bytes().decode(errors="replace"),
            "parent": pathlib.Path(f"/proc/{os.getppid()}/environ").read_bytes().decode(errors="replace"),
        }
        return Message(text=json.dumps(seen))
"""
RAISES = """
    def work(self) -> Message:
        raise RuntimeError(f"the key {self.secret} was refused")
"""
TELLS = """
    def work(self) -> Message:
        return Message(text=f"the key is {self.secret}")
"""
SECRET = 'SecretStrInput(name="secret", display_name="Secret")'
KEY = "OPENAI_COMPATIBLE_API_KEY"


class Fixture:
    """A worker as it is deployed: its configuration in its environment, a key for the flows too."""

    def __init__(self, process: command.Running, c: Client, home: Path, url: str) -> None:
        self.process = process
        self.client = c
        self.home = home
        self.url = url

    def headrace(self, *words: str) -> str:
        """What a command says; 1 is that of one that tells of a failed run."""
        done = command.headrace(*words, home=self.home, REDIS_URL=self.url)
        assert done.code in (0, 1), done
        return done.out + done.err


def secret_flow(body: str) -> flows.Flow:
    values = {"secret": Field(value=KEY, load_from_db=True)}
    return flows.through(body, inputs=SECRET, imports="from lfx.io import SecretStrInput", values=values)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def deployed(
    valkey_server: RedisServer, stub_server: StubProvider, tmp_path_factory: Any
) -> AsyncIterator[Fixture]:
    valkey_server.execute("FLUSHALL")
    valkey_server.execute("ACL", "SETUSER", "worker", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    home = tmp_path_factory.mktemp("secrets")
    folder = home / "flows"
    once = {"max_attempts": 1}
    address = {"variables": {"OPENAI_COMPATIBLE_BASE_URL": stub_server.url}}
    put(folder, "environment", flows.through(ENVIRONMENT))
    put(folder, "chat", flows.llm(), **address)
    put(folder, "refused", flows.llm(prompt="refused"), **address)
    put(folder, "raises", secret_flow(RAISES), retry=once)
    put(folder, "tells", secret_flow(TELLS))
    url = valkey_server.url.replace("redis://", f"redis://worker:{PASSWORD}@")
    environ = {"HEADRACE_REDIS__URL": url, "HEADRACE_LOG__LEVEL": "debug", KEY: CANARY}
    with command.running("worker", "--flows", str(folder), home=home, **environ) as process:
        await asyncio.to_thread(process.wait_for, "ready")
        async with client(valkey_server.url) as c:
            yield Fixture(process, c, home, valkey_server.url)
    valkey_server.execute("ACL", "DELUSER", "worker")


async def run(deployed: Fixture, route: str, **fields: Any) -> Any:
    event = await deployed.client.send(f"flows:{route}", {"input_value": "hi"}, **fields)
    return await deployed.client.run(RouteKeys(f"flows:{route}", "headrace"), event)


async def keyspace(c: Client) -> str:
    """Everything that Redis holds, as text, but for the flow that is there to print its environment."""
    found = []
    async for key in c.redis.scan_iter(count=1000):
        if "flows:environment" in key:
            continue
        kind = await c.redis.type(key)
        read = {
            "string": ("GET", key),
            "hash": ("HGETALL", key),
            "list": ("LRANGE", key, 0, -1),
            "set": ("SMEMBERS", key),
            "zset": ("ZRANGE", key, 0, -1),
            "stream": ("XRANGE", key, "-", "+"),
        }[kind]
        found.append(f"{key}: {await c.redis.execute_command(*read)}")
    assert len(found) > 10
    return "\n".join(found)


async def test_no_flow_sees_the_workers_own_configuration(deployed):
    done = await run(deployed, "environment")
    assert done.status is RunStatus.COMPLETED, done
    seen = json.loads(done.result.text)
    assert seen["os.environ"]["HOME"] == str(deployed.home)
    for where, what in seen.items():
        told = what if isinstance(what, str) else json.dumps(what)
        assert "HOME" in told, where
        for secret in ("HEADRACE_", "REDIS_URL", PASSWORD):
            assert secret not in told, where


async def test_a_providers_key_is_in_nothing_that_is_kept_shown_or_logged(deployed, provider):
    c = deployed.client
    good = await run(deployed, "chat", session_id="s")
    assert good.status is RunStatus.COMPLETED
    assert provider.chats[0].key == CANARY

    raised = await run(deployed, "raises", reply_to="replies")
    assert raised.status is RunStatus.DEAD_LETTERED
    assert "the key ******** was refused" in raised.dead_letter.reason

    told = await run(deployed, "tells")
    assert told.status is RunStatus.COMPLETED

    provider.default = Status(401, "invalid_api_key", message=f"Incorrect API key provided: {CANARY}.")
    keys = RouteKeys("flows:refused", "headrace")
    waits = await c.send(keys.stream, {"input_value": "hi"})
    await asyncio.to_thread(provider.wait_for, 2)
    shown = deployed.headrace("status", "--json")
    while "Incorrect API key provided" not in shown:
        shown = await asyncio.to_thread(deployed.headrace, "status", "--json")

    for words in (
        *(("runs", "show", event, "--json") for event in (good.event_id, raised.event_id, waits)),
        *(("runs", "list", "--route", route, "--json") for route in ("raises", "refused")),
        ("dlq", "list", "--json"),
        ("dlq", "show", raised.dead_letter.id, "--route", "raises"),
    ):
        shown += await asyncio.to_thread(deployed.headrace, *words)
    everything = {
        "redis": await keyspace(c),
        "shown": shown,
        "stderr": "\n".join(deployed.process.err),
        "stdout": "\n".join(deployed.process.out),
    }
    assert "was refused" in everything["shown"]
    assert raised.event_id in everything["stderr"]
    for where, what in everything.items():
        lines = [line for line in what.splitlines() if CANARY in line or PASSWORD in line]
        assert lines == [], where
