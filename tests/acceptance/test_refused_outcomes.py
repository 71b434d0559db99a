"""Outcomes that Redis refuses for good: a run that was paid for is kept and never run again, whatever refuses it."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from runtime.broker.keys import RouteKeys
from runtime.broker.settlement import Settlement
from runtime.engine.echo import EchoEngine
from runtime.errors import BrokerError, EventFault
from runtime.worker import publications, settler
from shared_models.dead_letter import ErrorInfo
from shared_models.result import RunStatus
from tests.support.harness import DEADLINE, client, running, worker_settings, write_flow
from tests.support.servers import RedisServer

KEYS = RouteKeys("flows:echo", "headrace")
DEAD = "flows:echo:dead_letter"


class Paid(EchoEngine):
    """Counts its runs."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    async def run(self, flow, request, history, emit):
        self.runs[request.event_id] += 1
        if request.payload.get("refuse"):
            raise EventFault(
                ErrorInfo(code="bad_request", message="the provider does not want it", provider_status=400)
            )
        return await super().run(flow, request, history, emit)


@pytest.fixture
def flows(tmp_path, monkeypatch):
    monkeypatch.setattr(settler, "REFUSED_AGAIN", 0.2)
    write_flow(tmp_path / "flows", "echo", spec={"publish": [{"to": "taken"}]})
    return tmp_path / "flows"


async def held(c, event: str) -> None:
    """Wait until an outcome was kept, twice: it was tried again in between."""
    seen, after = 0, "0-0"
    async with asyncio.timeout(DEADLINE):
        while seen < 2:
            for line in await c.broker.runs.feed(KEYS, event, after=after, block=5):
                after, seen = line.id, seen + (line.type.value == "retry")


@pytest.mark.parametrize("mended", ["taken", DEAD])
async def test_no_target_and_no_dead_letters_to_write_to(broker_url, flows, mended):
    """Kept over restarts, in the record with its result, until either is mended."""
    engine = Paid()
    async with client(broker_url) as c:
        for name in ("taken", DEAD):
            await c.redis.set(name, "a string")
        for _ in range(2):
            async with running(broker_url, flows, engine=engine):
                if not engine.runs:
                    event = await c.send("flows:echo", {"input_value": "paid for"})
                await held(c, event)
        run = await c.broker.runs.get(KEYS, event)
        assert run is not None and run.result is not None
        assert (run.status, run.result.text) == (RunStatus.DELAYED, "paid for")
        assert run.last_error and "not a stream" in run.last_error
        await c.redis.delete(mended)
        async with running(broker_url, flows, engine=engine):
            run = await c.run(KEYS, event)
        assert run.result is not None
        assert run.result.text == "paid for"
        if mended == "taken":
            assert run.status is RunStatus.COMPLETED
            assert await c.redis.xlen("taken") == 1
        else:
            assert (run.status, run.dead_letter and run.dead_letter.code) == (
                RunStatus.DEAD_LETTERED,
                "publish_refused",
            )
        assert await c.redis.xlen("flows:echo") == 0
    assert engine.runs == {event: 1}


async def test_a_failure_that_no_dead_letters_take_is_kept_as_it_was(broker_url, flows):
    engine = Paid()
    async with client(broker_url) as c:
        await c.redis.set(DEAD, "a string")
        async with running(broker_url, flows, engine=engine):
            event = await c.send("flows:echo", {"refuse": True})
            await held(c, event)
            await c.redis.delete(DEAD)
            run = await c.run(KEYS, event)
    assert (run.status, run.attempts) == (RunStatus.DEAD_LETTERED, 1)
    assert run.dead_letter is not None
    assert run.dead_letter.code == "bad_request"
    assert engine.runs == {event: 1}


@pytest.mark.parametrize("dead_letter", [None, "others:dead"])
async def test_a_target_that_is_not_ours_to_write(server: RedisServer, flows, dead_letter):
    """An ACL refuses the whole script, whatever else it would write."""
    spec = {"publish": [{"to": "others:in"}], **({"dead_letter": dead_letter} if dead_letter else {})}
    write_flow(flows, "echo", spec=spec)
    engine = Paid()
    server.execute("ACL", "SETUSER", "worker", "reset", "on", ">pw", "+@all", "~flows:*", "~hr:*")
    url = server.url.replace("://", "://worker:pw@")
    try:
        async with client(server.url) as c, running(url, flows, engine=engine):
            event = await c.send("flows:echo", {"input_value": "paid for"})
            if dead_letter:
                await held(c, event)
                server.execute("ACL", "SETUSER", "worker", "~others:dead")
            run = await c.run(KEYS, event)
    finally:
        server.execute("ACL", "DELUSER", "worker")
    assert (run.status, run.dead_letter and run.dead_letter.code) == (RunStatus.DEAD_LETTERED, "publish_refused")
    assert run.result is not None
    assert run.result.text == "paid for"
    assert engine.runs == {event: 1}


@pytest.mark.parametrize("limit", ["proto-max-bulk-len", "client-query-buffer-limit"])
async def test_a_result_that_is_larger_than_redis_takes(server: RedisServer, flows, limit):
    """It would hang up on it, however often that was sent."""

    class Large(Paid):
        async def run(self, flow, request, history, emit):
            output = await super().run(flow, request, history, emit)
            object.__setattr__(output.result, "text", "x" * 3_000_000)
            return output

    engine, before = Large(), server.execute("CONFIG", "GET", limit)
    server.execute("CONFIG", "SET", limit, 2 * 1024 * 1024)
    try:
        async with client(server.url) as c, running(server.url, flows, engine=engine):
            event = await c.send("flows:echo", {"input_value": "paid for"})
            run = await c.run(KEYS, event)
            letter = (await c.broker.dead_letters.list(DEAD))[0]
    finally:
        server.execute("CONFIG", "SET", limit, before[limit] if isinstance(before, dict) else before[1])
    assert (run.status, run.attempts) == (RunStatus.DEAD_LETTERED, 1)
    assert letter.code == "result_too_large"
    assert limit in letter.reason
    assert engine.runs == {event: 1}


@pytest.mark.parametrize("where", ["made", "written"])
async def test_a_fault_of_ours_after_the_run_does_not_have_it_run_again(broker_url, flows, monkeypatch, where):
    def fails(*_args, **_more):
        raise RecursionError("a fault of ours")

    if where == "made":
        monkeypatch.setattr(publications, "completed", fails)
    else:
        monkeypatch.setattr(Settlement, "_completed", fails)
    engine = Paid()
    async with client(broker_url) as c, running(broker_url, flows, engine=engine):
        event = await c.send("flows:echo", {"input_value": "paid for"})
        run = await c.run(KEYS, event)
    assert (run.status, run.attempts) == (RunStatus.DEAD_LETTERED, 1)
    assert run.result is not None
    assert run.result.text == "paid for"
    assert engine.runs == {event: 1}


async def test_where_redis_takes_nothing_of_an_outcome_its_slot_is_free_and_the_event_comes_again(
    broker_url, flows, monkeypatch
):
    """As behind a limit that even what is kept does not fit in."""
    settle, stuck, refuse = Settlement.settle, asyncio.Event(), True

    async def settles(self, claim, outcome, **more):
        if refuse and claim.event_id == "large":
            stuck.set()
            raise BrokerError("ERR max request size exceeded")
        return await settle(self, claim, outcome, **more)

    async def holds(self, claim, outcome, **more):
        raise BrokerError("ERR max request size exceeded")

    monkeypatch.setattr(Settlement, "settle", settles)
    monkeypatch.setattr(Settlement, "hold", holds)
    engine = Paid()
    async with (
        client(broker_url) as c,
        running(broker_url, flows, engine=engine, settings=worker_settings(concurrency=1)),
    ):
        await c.send("flows:echo", {"input_value": "paid for"}, event_id="large")
        await asyncio.wait_for(stuck.wait(), DEADLINE)
        other = await c.send("flows:echo", {"input_value": "small"})
        assert (await c.run(KEYS, other)).status is RunStatus.COMPLETED
        refuse = False
        run = await c.run(KEYS, "large")
    assert run.status is RunStatus.COMPLETED
    assert run.attempts == engine.runs["large"]
