"""What a run tells while it runs, and that it can be ended while it runs."""

from __future__ import annotations

import asyncio

from runtime.broker.keys import RouteKeys
from runtime.broker.runs import Cancelled
from shared_models.result import RunEvent, RunStatus
from tests.support.harness import Client, client, running, write_flow
from tests.support.steps import StepEngine

KEYS = RouteKeys("flows:a", "headrace")
DEADLINE = 20


async def lines(c: Client, event: str, until: str, after: str = "0-0") -> list[RunEvent]:
    """The feed up to a line of that type."""
    found: list[RunEvent] = []
    async with asyncio.timeout(DEADLINE):
        while until not in [line.type.value for line in found]:
            found += await c.broker.runs.feed(KEYS, event, after=found[-1].id if found else after, block=DEADLINE)
    return found


def kinds(found: list[RunEvent]) -> list[str]:
    return [line.type.value for line in found]


async def test_a_running_run_is_cancelled_and_its_later_effects_do_not_happen(server_url, tmp_path):
    write_flow(tmp_path, "a", spec={"publish": [{"to": "flows:next"}]})
    engine = StepEngine()
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        event = await c.send("flows:a", {"steps": 2, "wait": True})
        await asyncio.wait_for(engine.begun[event].wait(), DEADLINE)
        assert await c.broker.runs.cancel(KEYS, event) is Cancelled.ASKED
        began = asyncio.get_running_loop().time()
        record = await c.run(KEYS, event)
        engine.go.set()
        assert record.status is RunStatus.CANCELLED
        assert asyncio.get_running_loop().time() - began < DEADLINE / 2
        assert kinds(await lines(c, event, "cancelled")).count("cancelled") == 1
        other = await c.send("flows:a", {"steps": 1})
        assert (await c.run(KEYS, other)).status is RunStatus.COMPLETED
        assert engine.effects == [(other, 0)]
        assert await c.redis.xlen("flows:next") == 1  # the other's
        assert await c.broker.runs.cancel(KEYS, event) is Cancelled.ENDED
        assert await c.redis.xlen("flows:a") == 0
        assert not await c.redis.exists("flows:a:dead_letter")


async def test_a_run_that_completes_before_it_hears_of_it_stays_completed(server_url, tmp_path):
    write_flow(tmp_path, "a")
    engine = StepEngine()
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        event = await c.send("flows:a", {"wait": True})
        await asyncio.wait_for(engine.begun[event].wait(), DEADLINE)
        engine.go.set()
        await c.broker.runs.cancel(KEYS, event)
        record = await c.run(KEYS, event)
        assert record.status in (RunStatus.COMPLETED, RunStatus.CANCELLED)
        assert len(engine.effects) == (record.status is RunStatus.COMPLETED)


async def test_a_cancelled_run_of_one_event_leaves_the_others_alone(server_url, tmp_path):
    write_flow(tmp_path, "a")
    engine = StepEngine()
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        events = [await c.send("flows:a", {"wait": True}) for _ in range(4)]
        for event in events:
            await asyncio.wait_for(engine.begun[event].wait(), DEADLINE)
        for event in events[:2]:
            await c.broker.runs.cancel(KEYS, event)
        for event in events[:2]:
            assert (await c.run(KEYS, event)).status is RunStatus.CANCELLED
        engine.go.set()
        for event in events[2:]:
            assert (await c.run(KEYS, event)).status is RunStatus.COMPLETED


async def test_components_are_told_to_who_follows(server_url, tmp_path):
    write_flow(tmp_path, "a")
    engine = StepEngine()
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        event = await c.send("flows:a", {"steps": 2, "wait": True, "tokens": 3})
        await asyncio.wait_for(engine.begun[event].wait(), DEADLINE)
        await c.broker.feeds.follow([(KEYS, event)])
        early = await lines(c, event, "component_started")  # what was told before anybody followed is not lost
        engine.go.set()
        found = early + await lines(c, event, "completed", early[-1].id)
        assert kinds(found)[-5:] == [
            "component_started",
            "component_ended",
            "component_started",
            "component_ended",
            "completed",
        ]
        assert found[-2].data == {"component_id": "c-1", "component_name": "Step", "ms": 1.0}
        assert engine.streams == [False]


async def test_a_run_that_nobody_follows_tells_its_end_only(server_url, tmp_path):
    write_flow(tmp_path, "a")
    engine = StepEngine()
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        short = await c.send("flows:a", {"steps": 3, "tokens": 3})
        long = await c.send("flows:a", {"steps": 1, "sleep": 0.2})
        for event in (short, long):
            assert kinds(await lines(c, event, "completed")) == ["started", "completed"]
        await c.broker.feeds.follow([(KEYS, "followed")])
        followed = await c.send("flows:a", {"steps": 1}, event_id="followed")
        assert "component_ended" in kinds(await lines(c, followed, "completed"))


async def test_tokens_are_told_where_they_are_asked_for(server_url, tmp_path):
    write_flow(tmp_path, "a", spec={"publish": [{"to": "flows:next"}]})
    write_flow(tmp_path, "next")
    write_flow(tmp_path, "b", spec={"tokens": True})
    engine = StepEngine()
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        event = await c.send("flows:a", {"steps": 2, "tokens": 100}, tokens=True)
        found = await lines(c, event, "completed")
        told = [line.data for line in found if line.type.value == "token"]
        for n in range(2):
            text = "".join(data["text"] for data in told if data["message_id"] == f"m-{n}")
            assert text == "".join(f"{token} " for token in range(100))
        assert len(told) < 20  # those of a moment are one line
        (child,) = (await c.run(KEYS, event)).published
        await c.run(RouteKeys("flows:next", "headrace"), child.event_id)
        own = await c.send("flows:b", {"steps": 1, "tokens": 1})
        record = await c.run(RouteKeys("flows:b", "headrace"), own)
        assert (record.status, engine.streams) == (RunStatus.COMPLETED, [True, True, True])
