"""Chat memory over events and workers: what a session said is known to it, and to nobody else."""

from __future__ import annotations

import asyncio
import json

from runtime.broker.keys import RouteKeys
from runtime.settings import RetentionSettings
from shared_models.result import RunStatus
from tests.support import flows, rendezvous
from tests.support.harness import Client, client, running, worker_settings
from tests.support.provider import Say, Transcript
from tests.support.real import REAL, put, text
from tests.support.rendezvous import Rendezvous

pytestmark = REAL


def remembering() -> flows.Flow:
    """A flow that answers with what the session has said before, leaving out what it is told now."""
    flow = flows.Flow("Remembers")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    memory = flow.add("Memory", "Memory-it")
    out = flow.add("ChatOutput", "ChatOutput-out")
    body = """
        def work(self) -> Message:
            said = [line.partition(": ")[2] for line in str(self.history).splitlines() if line.startswith("User: ")]
            return Message(text="|".join(s for s in said if s != self.text))
    """
    inputs = 'MessageTextInput(name="history", display_name="History")'
    both = flow.custom(flows.component(body, inputs=inputs), "Custom-both")
    flow.connect(chat_in, "message", both, "text")
    flow.connect(memory, "messages_text", both, "history")
    flow.connect(both, "out", out, "input_value")
    return flow


async def say(c: Client, keys: RouteKeys, what: str, session: str | None, tenant: str | None = None) -> str:
    return await text(c, keys, {"input_value": what}, session_id=session, tenant_id=tenant)


async def kept(c: Client, keys: RouteKeys, session: str, tenant: str | None = None) -> list[str]:
    """What is committed of a session, oldest first."""
    return [m["text"] for m in await c.broker.chat.load(keys, tenant=tenant, session=session)]


async def test_a_session_knows_what_it_said_and_nobody_else_does(server_url, engine, tmp_path):
    keys = put(tmp_path, "first", remembering())
    other = put(tmp_path, "second", remembering())
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        assert await say(c, keys, "I am Ada", "s") == ""
        assert await say(c, keys, "who am I", "s") == "I am Ada"
        assert await say(c, keys, "and now", "s") == "I am Ada|who am I"
        assert await say(c, keys, "another session", "s2") == ""
        assert await say(c, keys, "another tenant", "s", tenant="acme") == ""
        assert await say(c, keys, "that tenant again", "s", tenant="acme") == "another tenant"
        assert await say(c, other, "another route", "s") == ""
        assert await say(c, keys, "without a session", None) == ""
        assert await say(c, keys, "without one again", None) == ""
        assert await kept(c, keys, "s") == ["I am Ada", "", "who am I", "I am Ada", "and now", "I am Ada|who am I"]


async def test_two_workers_in_turn_share_one_memory(server_url, engine, tmp_path):
    """Each event is run by the worker that is there; a third runs beside a second."""
    keys = put(tmp_path, "chat", remembering())
    async with client(server_url) as c:
        workers: list[str | None] = []
        said: list[str] = []
        for turn in range(4):
            async with running(server_url, tmp_path, engine=engine):
                event = await c.send(keys.stream, {"input_value": f"turn {turn}"}, session_id="s")
                run = await c.run(keys, event)
                assert run.result is not None
                assert run.result.text == "|".join(said)
                said.append(f"turn {turn}")
                workers.append(run.worker)
        assert len(set(workers)) == 4
        settings = worker_settings(concurrency=1)
        async with (
            running(server_url, tmp_path, engine=engine, settings=settings),
            running(server_url, tmp_path, engine=engine, settings=settings),
        ):
            for turn in range(4, 8):
                assert await say(c, keys, f"turn {turn}", "s") == "|".join(said)
                said.append(f"turn {turn}")


async def test_a_failed_attempt_leaves_nothing_and_a_retry_doubles_nothing(server_url, engine, tmp_path):
    async with Rendezvous() as place:
        keys = put(tmp_path, "chat", rendezvous.flow(place.place), retry={"initial": "10ms", "max": "10ms"})
        async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
            failing = await c.send(keys.stream, {"input_value": "never"}, session_id="s")
            for _ in range(3):
                await (await place.met()).fail("as told")
            assert (await c.run(keys, failing)).status is RunStatus.DEAD_LETTERED
            assert await kept(c, keys, "s") == []
            flaky = await c.send(keys.stream, {"input_value": "question"}, session_id="s")
            await (await place.met()).fail("as told")
            await (await place.met()).say("answer")
            assert (await c.run(keys, flaky)).attempts == 2
            assert await kept(c, keys, "s") == ["question", "answer"]


async def test_a_session_keeps_so_many_messages_and_no_more(server_url, engine, tmp_path):
    keys = put(tmp_path, "chat", remembering())
    retention = RetentionSettings(chat_messages=6, chat=3600)
    settings = worker_settings().model_copy(update={"retention": retention})
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine, settings=settings):
        for n in range(6):
            await say(c, keys, f"m{n}", "s")
        texts = await kept(c, keys, "s")
        assert len(texts) == 6
        assert texts[-2] == "m5"
        assert "m2" not in texts
        assert 3500 < await c.redis.ttl(keys.chat(None, "s")) <= 3600


async def test_an_agent_remembers_and_parallel_sessions_do_not_mix(server_url, engine, tmp_path, provider):
    """The memory that an Agent has by itself, which in Langflow is a database."""
    variables = {"OPENAI_COMPATIBLE_BASE_URL": provider.url}
    keys = put(tmp_path, "agent", flows.agent(), variables=variables)
    names = ["Ada", "Bea", "Cleo"]
    async with (
        client(server_url) as c,
        running(server_url, tmp_path, engine=engine),
        running(server_url, tmp_path, engine=engine),
    ):
        provider.default = Say("noted")
        await asyncio.gather(*(say(c, keys, f"I am {name}", f"of {name}") for name in names))
        provider.default = Transcript()
        told = await asyncio.gather(*(say(c, keys, "who am I?", f"of {name}") for name in names))
        for name, transcript in zip(names, told, strict=True):
            spoken = [message for message in json.loads(transcript) if message[0] != "system"]
            assert spoken == [["user", f"I am {name}"], ["assistant", "noted"], ["user", "who am I?"]]
