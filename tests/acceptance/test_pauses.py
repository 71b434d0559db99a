"""Runs that wait for a person, with a worker in the test's process: decisions, time-outs, encryption, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic import SecretStr
from structlog.testing import capture_logs

from runtime.broker.keys import RouteKeys
from runtime.broker.runs import Cancelled
from runtime.settings import RetentionSettings, Settings
from shared_models.result import Decision, RunRecord, RunStatus
from tests.support.hand import make_due, raw
from tests.support.harness import DEADLINE, Client, client, running, worker_settings, write_flow
from tests.support.ring import Counting

KEYS = RouteKeys("flows:a", "headrace")
ASK: dict[str, Any] = {"prompt": "May I?", "options": ["approve", "reject"]}


@pytest_asyncio.fixture
async def c(server_url: str) -> AsyncIterator[Client]:
    async with client(server_url) as made:
        yield made


@pytest.fixture
def flows(tmp_path: Path) -> Path:
    write_flow(tmp_path, "a", spec={"retry": {"initial": "1ms", "max": "1ms"}})
    return tmp_path


def settings(key: str | None = None, waiting: float = 3600.0) -> Settings:
    made = worker_settings(checkpoint_key=SecretStr(key) if key else None)
    return made.model_copy(update={"retention": RetentionSettings(waiting=waiting)})


async def asked(c: Client, event: str, *, again: int = 1) -> RunRecord:
    """The record of a run that waits, once its feed says so for the nth time."""
    after, seen = "0-0", 0
    async with asyncio.timeout(DEADLINE):
        while seen < again:
            for line in await c.broker.runs.feed(KEYS, event, after=after, block=DEADLINE):
                after, seen = line.id, seen + (line.type == "waiting")
    record = await c.broker.runs.get(KEYS, event)
    assert record is not None
    return record


async def decide(c: Client, event: str, action: str) -> None:
    await c.broker.pauses.resume(KEYS, event, Decision(action_id=action))


def text(record: RunRecord) -> str | None:
    assert record.status is RunStatus.COMPLETED, record
    assert record.result is not None
    return record.result.text


async def test_a_run_waits_without_a_worker_and_goes_on_in_another(server_url: str, flows: Path, c: Client) -> None:
    first, second = Counting(), Counting()
    async with running(server_url, flows, engine=first, settings=settings()):
        event = await c.send(KEYS.stream, {"input_value": "hi", "ask": [ASK, ASK]})
        record = await asked(c, event)
        assert record.pause is not None
        assert (record.status, record.pause.prompt, record.attempts) == (RunStatus.WAITING, "May I?", 0)
        assert text(await c.run(KEYS, await c.send(KEYS.stream, {"input_value": "beside it"}))) == "beside it"
    async with running(server_url, flows, engine=second, settings=settings()):
        await decide(c, event, "approve")
        await asked(c, event, again=2)
    async with running(server_url, flows, settings=settings()):
        await decide(c, event, "reject")
        done = await c.run(KEYS, event)
    assert text(done) == "hi approve reject"
    assert (done.attempts, first.runs[event], second.runs[event]) == (1, 1, 1)
    assert await raw(c.broker, "XLEN", KEYS.stream) == 0


async def test_when_the_time_is_up_the_fallback_is_taken(server_url: str, flows: Path, c: Client) -> None:
    async with running(server_url, flows, settings=settings()):
        ask = {**ASK, "timeout": 0.05, "fallback": "reject"}
        assert text(await c.run(KEYS, await c.send(KEYS.stream, {"input_value": "hi", "ask": [ask]}))) == "hi reject"


async def test_without_a_fallback_it_ends_in_the_dead_letters(server_url: str, flows: Path, c: Client) -> None:
    async with running(server_url, flows, settings=settings(waiting=0.05)):
        record = await c.run(KEYS, await c.send(KEYS.stream, {"ask": [{**ASK, "timeout": 999.0}]}))
    assert record.dead_letter is not None
    assert (record.dead_letter.code, "May I?" in record.dead_letter.reason) == ("pause_expired", True)


async def test_a_failure_after_the_decision_is_retried_with_it(server_url: str, flows: Path, c: Client) -> None:
    class Fails(Counting):
        async def run(self, flow: Any, request: Any, history: Any, emit: Any) -> Any:
            output = await super().run(flow, request, history, emit)
            if self.runs[request.event_id] == 2:
                raise ConnectionError("once")
            return output

    engine = Fails()
    async with running(server_url, flows, engine=engine, settings=settings()):
        event = await c.send(KEYS.stream, {"input_value": "hi", "ask": [ASK]})
        await asked(c, event)
        await decide(c, event, "approve")
        record = await c.run(KEYS, event)
    assert (text(record), record.attempts, engine.runs[event]) == ("hi approve", 2, 3)


async def test_cancelling_one_that_waits(server_url: str, flows: Path, c: Client) -> None:
    async with running(server_url, flows, settings=settings()):
        event = await c.send(KEYS.stream, {"ask": [ASK]})
        await asked(c, event)
        assert await c.broker.runs.cancel(KEYS, event) is Cancelled.CANCELLED
    assert await raw(c.broker, "XLEN", KEYS.stream) == 0


async def test_with_a_key_nothing_of_it_can_be_read_in_redis(server_url: str, flows: Path, c: Client) -> None:
    async with running(server_url, flows, settings=settings("k1")):
        event = await c.send(KEYS.stream, {"input_value": "hi", "ask": [ASK, {**ASK, "prompt": "again?"}]})
        await asked(c, event)
    kept: bytes = await raw(c.broker, "HGET", KEYS.gate(event), "checkpoint")
    assert kept[:1] == b"s"
    async with running(server_url, flows, settings=settings("k2,k1")):
        await decide(c, event, "approve")
        await asked(c, event, again=2)
    async with running(server_url, flows, settings=settings("k2")):
        await decide(c, event, "reject")
        assert text(await c.run(KEYS, event)) == "hi approve reject"


async def test_a_worker_without_the_key_loses_nothing(server_url: str, flows: Path, c: Client) -> None:
    """Nor does it keep the route's other events from running: in a deploy, say, that brings a new key."""
    async with running(server_url, flows, settings=settings("k1")):
        event = await c.send(KEYS.stream, {"input_value": "hi", "ask": [ASK]})
        await asked(c, event)
    with capture_logs() as lines:
        async with running(server_url, flows, settings=settings("k2")):
            await decide(c, event, "approve")
            async with asyncio.timeout(DEADLINE):
                while not ((record := await c.broker.runs.get(KEYS, event)) and record.last_error):
                    await asyncio.sleep(0.02)
            assert "CHECKPOINT_KEY" in record.last_error
            assert (await c.broker.streams.blocked([KEYS]))[0] is None
            assert text(await c.run(KEYS, await c.send(KEYS.stream, {"input_value": "beside it"}))) == "beside it"
    assert {line["event"] for line in lines if line["log_level"] == "warning"} == {"event.postponed"}
    await make_due(c.broker)
    async with running(server_url, flows, settings=settings("k1")):
        record = await c.run(KEYS, event)
    assert (text(record), record.attempts) == ("hi approve", 1)


async def test_a_checkpoint_that_is_gone_ends_the_run(server_url: str, flows: Path, c: Client) -> None:
    async with running(server_url, flows, settings=settings()):
        event = await c.send(KEYS.stream, {"ask": [ASK]})
        await asked(c, event)
        await raw(c.broker, "HDEL", KEYS.gate(event), "checkpoint")
        await decide(c, event, "approve")
        record = await c.run(KEYS, event)
    assert record.dead_letter is not None
    assert record.dead_letter.code == "checkpoint_lost"


async def test_a_checkpoint_that_redis_does_not_take_ends_the_run(
    server_url: str, flows: Path, c: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runtime.broker import settlement
    from runtime.errors import OutcomeTooLarge

    async def check(connection: Any, asked: Any) -> None:
        if asked.script.name == "suspend":
            raise OutcomeTooLarge("too large")

    monkeypatch.setattr(settlement, "check_size", check)
    async with running(server_url, flows, settings=settings()):
        record = await c.run(KEYS, await c.send(KEYS.stream, {"ask": [ASK]}))
    assert record.dead_letter is not None
    assert record.dead_letter.code == "result_too_large"
