"""Whose fault it is: a provider that refuses the route, the event, or the moment. An empty key empties no queue."""

from __future__ import annotations

import asyncio
from typing import Any

from runtime.broker.keys import RouteKeys
from runtime.broker.streams import BlockInfo
from shared_models.dead_letter import DeadLetter
from shared_models.result import RunEventType, RunStatus
from tests.support import flows
from tests.support.harness import Client, client, running, worker_settings
from tests.support.provider import Echo, Hang, Status, StubProvider
from tests.support.real import REAL, put, runs, until

pytestmark = REAL

OPENAI = [{"name": "gpt-4o-mini", "provider": "OpenAI", "icon": "OpenAI", "metadata": {}}]
NO_RETRY = {"x-should-retry": "false"}
"""Tells the client library not to try by itself, which would only take time."""
PROBE = 0.6


def asking(stub: StubProvider, **more: Any) -> dict[str, Any]:
    """A route spec whose variables lead to the stub provider."""
    return {"variables": {"OPENAI_COMPATIBLE_BASE_URL": stub.url, **more}}


async def blocked(c: Client, keys: RouteKeys) -> BlockInfo:
    """Wait until the route is blocked; why."""

    async def look() -> BlockInfo | None:
        (found,) = await c.broker.streams.blocked([keys])
        return found

    return await until(look)


async def nothing_spent(c: Client, keys: RouteKeys, events: list[str]) -> None:
    """No dead letter, no attempt, every entry still there."""
    assert await c.redis.exists(f"{keys.stream}:dead_letter", f"{keys.stream}:results") == 0
    assert await c.redis.xlen(keys.stream) == len(events)
    for event in events:
        run = await c.broker.runs.get(keys, event)
        assert run is None or run.attempts == 0 or run.status is RunStatus.RUNNING, run


async def all_complete_once(c: Client, keys: RouteKeys, events: list[str]) -> None:
    results = await c.entries(f"{keys.stream}:results", len(events), timeout=60)
    done = await runs(c, keys, events)
    assert {(run.status, run.attempts) for run in done} == {(RunStatus.COMPLETED, 1)}
    assert sorted(r["parent_id"] for r in results) == sorted(events)
    assert await c.redis.xlen(f"{keys.stream}:results") == len(events)
    assert await c.redis.exists(f"{keys.stream}:dead_letter") == 0
    assert await c.redis.xlen(keys.stream) == 0
    assert await c.broker.streams.blocked([keys]) == [None]


async def starts(c: Client, keys: RouteKeys, events: list[str]) -> list[int]:
    """When attempts of these events began, by Redis' clock, in ms."""
    found = []
    for event in events:
        lines = await c.broker.runs.feed(keys, event)
        found += [line.at for line in lines if line.type is RunEventType.STARTED]
    return sorted(found)


def rare(probes: list[int], since: int) -> bool:
    """Whether there was at most one probe in each interval since the block: none may begin before it is granted."""
    return all(at >= since + n * PROBE * 1000 for n, at in enumerate(probes, start=1))


async def test_a_missing_then_a_revoked_key_keeps_100_events_and_a_good_one_runs_them(
    server_url, engine, tmp_path, provider
):
    spec = asking(provider, OPENAI_COMPATIBLE_API_KEY={"file": "key.txt"})
    keys = put(tmp_path, "chat", flows.llm(), **spec)
    settings = worker_settings(probe_interval=PROBE, concurrency=8)
    async with client(server_url) as c:
        events = [await c.send(keys.stream, {"input_value": str(n)}) for n in range(100)]
        async with running(server_url, tmp_path, engine=engine, settings=settings):
            why = await blocked(c, keys)
            assert why.code == "variable_missing"
            assert str(tmp_path / "key.txt") in why.reason
            since = why.since
            await probed(c, keys, times=2)
            await nothing_spent(c, keys, events)
            assert provider.requests == []

            provider.default = Status(401, "invalid_api_key")
            (tmp_path / "key.txt").write_text("sk-revoked\n")
            await asyncio.to_thread(provider.wait_for, 3)
            why = await blocked(c, keys)
            assert (why.code, why.component_id) == ("credential_refused", "LanguageModelComponent-llm")
            await nothing_spent(c, keys, events)
            assert rare([at for at in await starts(c, keys, events) if at > since], since)
            refused = len(provider.chats)
            assert {seen.key for seen in provider.chats} == {"sk-revoked"}

            provider.default = Echo()
            (tmp_path / "key.txt").write_text("sk-rotated\n")
            await all_complete_once(c, keys, events)
            answered = [seen.key for seen in provider.chats[refused:] if seen.key != "sk-revoked"]
            assert answered == ["sk-rotated"] * 100


async def test_a_key_that_is_refused_under_load_stops_two_workers_at_once(server_url, engine, tmp_path, provider):
    """What is under way ends; after that there is one probe in each interval, whoever makes it."""
    (tmp_path / "key.txt").write_text("sk-revoked")
    keys = put(tmp_path, "chat", flows.llm(), **asking(provider, OPENAI_COMPATIBLE_API_KEY={"file": "key.txt"}))
    slots = 2
    settings = worker_settings(probe_interval=PROBE, concurrency=slots)
    provider.default = Status(401, "invalid_api_key")
    async with (
        client(server_url) as c,
        running(server_url, tmp_path, engine=engine, settings=settings),
        running(server_url, tmp_path, engine=engine, settings=settings),
    ):
        # Not before both listen: one that begins to, on a route that is blocked already, has a probe at once.
        events = [await c.send(keys.stream, {"input_value": str(n)}) for n in range(12)]
        why = await blocked(c, keys)
        await probed(c, keys, times=3)
        await nothing_spent(c, keys, events)
        asked = len(provider.chats)
        begun = await starts(c, keys, events)
        assert asked <= len(begun)
        probes = [at for at in begun if at > why.since]
        assert len(begun) - len(probes) <= 2 * slots
        assert len(probes) >= 3
        assert rare(probes, why.since)
        provider.default = Echo()
        (tmp_path / "key.txt").write_text("sk-rotated")
        await all_complete_once(c, keys, events)


async def test_a_key_that_the_environment_lacks_and_has_after_a_restart(
    server_url, engine, tmp_path, provider, monkeypatch
):
    keys = put(tmp_path, "chat", flows.llm(model=OPENAI))
    settings = worker_settings(probe_interval=PROBE, concurrency=8)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    async with client(server_url) as c:
        events = [await c.send(keys.stream, {"input_value": str(n)}) for n in range(6)]
        async with running(server_url, tmp_path, engine=engine, settings=settings):
            why = await blocked(c, keys)
            assert (why.code, why.component_id) == ("credential_missing", "LanguageModelComponent-llm")
            assert "OPENAI_API_KEY" in why.reason
            await probed(c, keys, times=1)
        await nothing_spent(c, keys, events)
        assert provider.requests == []
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
        monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
        async with running(server_url, tmp_path, engine=engine, settings=settings):
            await all_complete_once(c, keys, events)
        assert {seen.key for seen in provider.chats} == {"sk-of-the-environment"}


async def probed(c: Client, keys: RouteKeys, *, times: int) -> None:
    """Wait until the route was probed so often: each probe moves the time of the next."""
    for _ in range(times):
        (before,) = await c.broker.streams.blocked([keys])
        assert before is not None

        async def moved(seen: int = before.next_probe) -> bool:
            (now,) = await c.broker.streams.blocked([keys])
            return now is not None and now.next_probe > seen

        await until(moved)


async def test_an_edit_of_a_blocked_flow_is_tried_at_once(server_url, engine, tmp_path, provider):
    """With the usual half minute between probes nobody would wait for the next one."""
    unselected = flows.llm()
    unselected.template("LanguageModelComponent-llm")["model"]["value"] = []
    keys = put(tmp_path, "chat", unselected, **asking(provider))
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        event = await c.send(keys.stream, {"input_value": "x"})
        why = await blocked(c, keys)
        assert why.code == "model_missing"
        put(tmp_path, "chat", flows.llm(), **asking(provider))
        run = await c.run(keys, event)
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)


# --- the moment's and the event's -----------------------------------------------------------------------------------


async def dead_letter(c: Client, keys: RouteKeys) -> DeadLetter:
    (letter,) = await c.broker.dead_letters.list(f"{keys.stream}:dead_letter", count=2)
    return letter


async def test_c1_429_is_tried_again_when_the_provider_says(server_url, engine, tmp_path, provider):
    keys = put(tmp_path, "chat", flows.llm(), retry={"initial": "10ms", "max": "20ms"}, **asking(provider))
    provider.script(Status(429, "rate_limit_exceeded", headers={**NO_RETRY, "retry-after": "2"}))
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        event = await c.send(keys.stream, {"input_value": "x"})
        run = await c.run(keys, event)
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 2)
        lines = await c.broker.runs.feed(keys, event)
        retried = next(line for line in lines if line.type is RunEventType.RETRY)
        again = [line.at for line in lines if line.type is RunEventType.STARTED][1]
        assert 2000 <= retried.data["due_at"] - retried.at < 2500
        assert retried.data["due_at"] <= again


async def test_c1_400_is_the_events_and_dead_lettered_at_once(server_url, engine, tmp_path, provider):
    keys = put(tmp_path, "chat", flows.llm(), **asking(provider))
    provider.default = Status(400, "context_length_exceeded", message="too long by half")
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        run = await c.run(keys, await c.send(keys.stream, {"input_value": "x"}, reply_to="replies"))
        assert (run.status, run.attempts, len(provider.chats)) == (RunStatus.DEAD_LETTERED, 1, 1)
        letter = await dead_letter(c, keys)
        assert (letter.code, letter.error.provider_status, letter.error.retryable) == ("provider_rejected", 400, False)
        assert letter.error.component_id == "LanguageModelComponent-llm"
        assert "too long by half" in letter.reason
        assert await c.broker.streams.blocked([keys]) == [None]


async def test_c1_500_is_retried_and_then_dead_lettered(server_url, engine, tmp_path, provider):
    keys = put(tmp_path, "chat", flows.llm(), retry={"initial": "10ms", "max": "20ms"}, **asking(provider))
    provider.default = Status(500, headers=NO_RETRY)
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        run = await c.run(keys, await c.send(keys.stream, {"input_value": "x"}))
        assert (run.status, run.attempts, len(provider.chats)) == (RunStatus.DEAD_LETTERED, 3, 3)
        letter = await dead_letter(c, keys)
        assert (letter.code, letter.error.provider_status, letter.error.retryable) == ("provider_failed", 500, True)
        assert letter.attempts == 3


async def test_c1_a_provider_that_hangs_is_left_at_the_timeout(server_url, engine, tmp_path, provider):
    keys = put(tmp_path, "chat", flows.llm(), timeout="2s", retry={"max_attempts": 1}, **asking(provider))
    provider.default = Hang()
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        run = await c.run(keys, await c.send(keys.stream, {"input_value": "x"}))
        assert (run.status, run.attempts) == (RunStatus.DEAD_LETTERED, 1)
        letter = await dead_letter(c, keys)
        assert (letter.code, letter.error.retryable) == ("run_timeout", True)
        # Nothing of the run goes on: the provider's connection is closed.
        await asyncio.to_thread(provider.wait_for, 1, what=lambda stub: stub.cancelled)


async def test_a_key_that_the_event_brought_blocks_nobody_else(server_url, engine, tmp_path, provider):
    spec = {**asking(provider), "event_variables": ["OPENAI_COMPATIBLE_API_KEY"]}
    keys = put(tmp_path, "chat", flows.llm(), **spec)
    provider.script(Status(401, "invalid_api_key"))
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        bad = await c.send(keys.stream, {"input_value": "x", "variables": {"OPENAI_COMPATIBLE_API_KEY": "sk-mine"}})
        run = await c.run(keys, bad)
        assert (run.status, run.attempts) == (RunStatus.DEAD_LETTERED, 1)
        good = {"input_value": "y", "variables": {"OPENAI_COMPATIBLE_API_KEY": "sk-good"}}
        assert (await c.run(keys, await c.send(keys.stream, good))).status is RunStatus.COMPLETED
        assert [seen.key for seen in provider.chats] == ["sk-mine", "sk-good"]
