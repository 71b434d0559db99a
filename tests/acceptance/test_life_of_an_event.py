"""The life of a delivery on a real server, with the echo engine: every way an event can end."""

from __future__ import annotations

import asyncio
import json

import pytest

from runtime.broker.keys import RouteKeys
from runtime.engine.echo import EchoEngine
from runtime.errors import RouteFault, RunFailed
from shared_models.dead_letter import ErrorInfo
from shared_models.result import RunStatus
from tests.support.harness import client, running, worker_settings, write_flow
from tests.support.malformed import MALFORMED, MAX_PAYLOAD

KEYS = RouteKeys("flows:echo", "headrace")
QUICK_RETRY = {"retry": {"initial": "10ms", "max": "40ms"}}


class Recording(EchoEngine):
    """Echo that keeps a ledger of its executions, and holds a run until it is let go where the payload says so."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.started = asyncio.Event()
        self.let_go = asyncio.Event()
        self.fail_first = 0

    async def run(self, flow, request, history, emit):
        self.runs.append(request.event_id)
        if request.payload.get("hold"):
            self.started.set()
            await self.let_go.wait()
        if self.fail_first > 0:
            self.fail_first -= 1
            raise RunFailed(ErrorInfo(code="stub_failed", message="not yet", component_id="C-1", retryable=True))
        return await super().run(flow, request, history, emit)


@pytest.fixture
def flows(tmp_path):
    write_flow(tmp_path / "flows", "echo", spec=QUICK_RETRY)
    return tmp_path / "flows"


async def test_xadd_alone_produces_a_result_and_a_completed_run(server_url, flows):
    async with running(server_url, flows), client(server_url) as c:
        entry = await c.redis.xadd("flows:echo", {"input_value": "hi"})
        [result] = await c.entries("flows:echo:results", 1)
        assert json.loads(result["payload"])["input_value"] == "hi"
        run = await c.run(KEYS, result["parent_id"])
        assert (run.status, run.attempts, run.entry_id) == (RunStatus.COMPLETED, 1, entry)
        assert run.result is not None
        assert run.result.text == "hi"
        assert [p.event_id for p in run.published] == [result["event_id"]]
        assert await c.redis.xlen("flows:echo") == 0


async def test_events_that_came_before_the_first_worker_are_run(server_url, flows):
    async with client(server_url) as c:
        for n in range(10):
            await c.redis.xadd("flows:echo", {"input_value": str(n)})
        async with running(server_url, flows):
            results = await c.entries("flows:echo:results", 10)
    assert sorted(json.loads(r["payload"])["input_value"] for r in results) == sorted(map(str, range(10)))


async def test_a_failing_event_is_tried_three_times_then_dead_lettered_and_a_requeue_runs_it(server_url, flows):
    engine = Recording()
    engine.fail_first = 3
    async with running(server_url, flows, engine=engine), client(server_url) as c:
        event = await c.send("flows:echo", {"input_value": "x"})
        run = await c.run(KEYS, event)
        assert run.status is RunStatus.DEAD_LETTERED
        assert engine.runs == [event] * 3
        [letter] = await c.broker.dead_letters.list("flows:echo:dead_letter", count=10)
        assert (letter.event_id, letter.code, letter.attempts) == (event, "stub_failed", 3)
        assert letter.error.component_id == "C-1"
        assert json.loads(letter.fields["payload"]) == {"input_value": "x"}
        assert run.dead_letter is not None
        assert (run.dead_letter.code, run.dead_letter.attempts, run.dead_letter.component_id) == (
            "stub_failed",
            3,
            "C-1",
        )
        assert await c.redis.exists("flows:echo:results") == 0

        await c.broker.dead_letters.requeue(KEYS, stream="flows:echo:dead_letter", dead_letter_id=letter.id)
        [result] = await c.entries("flows:echo:results", 1)
        assert result["parent_id"] == event
        assert (await c.run(KEYS, event)).status is RunStatus.COMPLETED
        assert await c.broker.dead_letters.list("flows:echo:dead_letter", count=10) == []


async def test_the_events_fault_is_dead_lettered_at_once(server_url, flows):
    engine = Recording()
    async with running(server_url, flows, engine=engine), client(server_url) as c:
        event = await c.send("flows:echo", {"fail": "event"})
        run = await c.run(KEYS, event)
        assert (run.status, run.attempts) == (RunStatus.DEAD_LETTERED, 1)
        assert engine.runs == [event]


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case.name)
async def test_t41_a_malformed_entry_is_kept_raw_and_the_next_good_one_runs(server_url, flows, case):
    settings = worker_settings(max_payload=MAX_PAYLOAD)
    async with running(server_url, flows, settings=settings), client(server_url) as c:
        flat = [part for pair in case.fields for part in pair]
        await c.redis.execute_command("XADD", "flows:echo", "*", *flat)
        await c.redis.xadd("flows:echo", {"input_value": "good"})
        [result] = await c.entries("flows:echo:results", 1)
        assert json.loads(result["payload"])["input_value"] == "good"
        [_] = await c.entries("flows:echo:dead_letter", 1)
        [letter] = await c.broker.dead_letters.list("flows:echo:dead_letter", count=10)
        assert letter.code == case.code
        raw = await c.broker.dead_letters.fields("flows:echo:dead_letter", letter.id)
        assert raw == case.fields


async def test_a_duplicate_of_a_done_event_is_not_run_again(server_url, flows):
    engine = Recording()
    async with running(server_url, flows, engine=engine), client(server_url) as c:
        event = await c.send("flows:echo", {"input_value": "once"})
        await c.run(KEYS, event)
        await c.send("flows:echo", {"input_value": "once"}, event_id=event)
        other = await c.send("flows:echo", {"input_value": "another"}, idempotency_key=event)
        last = await c.send("flows:echo", {"input_value": "last"})
        await c.run(KEYS, last)
        run = await c.run(KEYS, other)
        assert engine.runs == [event, last]
        assert run.duplicate_of == event
        assert run.result is not None
        assert run.result.text == "once"
        assert await c.redis.xlen("flows:echo:results") == 2


async def test_a_duplicate_of_a_running_event_waits_and_runs_where_the_first_fails(server_url, flows):
    write_flow(flows, "echo", spec={"retry": {"max_attempts": 1}})
    engine = Recording()
    engine.fail_first = 1
    async with running(server_url, flows, engine=engine), client(server_url) as c:
        first = await c.send("flows:echo", {"input_value": "a", "hold": True}, idempotency_key="k")
        await asyncio.wait_for(engine.started.wait(), 10)
        second = await c.send("flows:echo", {"input_value": "b"}, idempotency_key="k")
        engine.let_go.set()
        assert (await c.run(KEYS, first)).status is RunStatus.DEAD_LETTERED
        assert (await c.run(KEYS, second)).status is RunStatus.COMPLETED
        assert engine.runs == [first, second]


async def test_a_route_that_is_at_fault_is_blocked_and_nothing_is_spent(server_url, flows):
    class Mended(Recording):
        broken = True

        async def run(self, flow, request, history, emit):
            payload = {**request.payload, **({"fail": "route"} if self.broken else {})}
            import dataclasses

            return await super().run(flow, dataclasses.replace(request, payload=payload), history, emit)

    engine = Mended()
    settings = worker_settings(concurrency=4, probe_interval=0.5)
    async with running(server_url, flows, engine=engine, settings=settings), client(server_url) as c:
        events = [await c.send("flows:echo", {"input_value": str(n)}) for n in range(100)]
        async with asyncio.timeout(10):
            while len(engine.runs) < 4 + 2:  # the first slots, then two probes
                [info] = await c.broker.streams.blocked([KEYS])
                await asyncio.wait([asyncio.create_task(c.redis.xread({"never": "$"}, block=50))])
        assert info is not None
        assert info.code == "echo_failed"
        probes = len(engine.runs)
        assert probes <= 8
        assert await c.redis.exists("flows:echo:dead_letter") == 0
        engine.broken = False
        results = await c.entries("flows:echo:results", 100)
        assert {r["parent_id"] for r in results} == set(events)
        runs = [await c.run(KEYS, event) for event in events]
        assert {run.attempts for run in runs} == {1}
        assert await c.broker.streams.blocked([KEYS]) == [None]


async def test_a_probe_with_a_bad_event_does_not_unblock_its_route(server_url, flows):
    """It says nothing about the route, and is dead-lettered; the next one is asked at once."""

    class Broken(Recording):
        async def run(self, flow, request, history, emit):
            self.runs.append(request.event_id)
            raise RouteFault(ErrorInfo(code="credential_refused", message="as scripted"))

    engine = Broken()
    settings = worker_settings(concurrency=4, probe_interval=0.4)
    async with running(server_url, flows, engine=engine, settings=settings), client(server_url) as c:
        first = await c.send("flows:echo", {"input_value": "first"})
        assert [e["type"] for e in await c.entries(KEYS.feed(first), 2)] == ["started", "released"]
        (before,) = await c.broker.streams.blocked([KEYS])
        assert before is not None
        for _ in range(3):
            await c.redis.xadd("flows:echo", {"payload": "{malformed"})
        for n in range(8):
            await c.send("flows:echo", {"input_value": str(n)})
        await c.entries("flows:echo:dead_letter", 3)
        (after,) = await c.broker.streams.blocked([KEYS])
        assert after is not None
        assert after.since == before.since
        assert engine.runs[:2] == [first, first]


async def test_context_and_lineage_come_back_over_a_pipeline(server_url, tmp_path):
    folder = tmp_path / "flows"
    write_flow(folder, "first", spec={"stream": "jobs:in", "publish": [{"to": "jobs:next"}]})
    write_flow(folder, "second", spec={"stream": "jobs:next", "results": {"stream": "jobs:final"}})
    async with running(server_url, folder), client(server_url) as c:
        context = {"order": 7, "mine": "producer-1"}
        event = await c.send("jobs:in", {"input_value": "go", "context": context}, root_id="root-1", tenant_id="acme")
        [final] = await c.entries("jobs:final", 1)
        payload = json.loads(final["payload"])
        assert payload["context"] == context
        assert (final["root_id"], final["tenant_id"], final["step_index"]) == ("root-1", "acme", "2")
        middle = await c.run(RouteKeys("jobs:next", "headrace"), final["parent_id"])
        assert middle.parent_id == event
        assert middle.root_id == "root-1"
        first = await c.run(RouteKeys("jobs:in", "headrace"), event)
        assert [p.event_id for p in first.published] == [middle.event_id]


async def test_a_run_that_takes_too_long_is_stopped_and_retried(server_url, flows):
    write_flow(flows, "echo", spec={**QUICK_RETRY, "timeout": "100ms"})
    engine = Recording()
    async with running(server_url, flows, engine=engine), client(server_url) as c:
        event = await c.send("flows:echo", {"sleep": 60})
        run = await c.run(KEYS, event)
        assert run.dead_letter is not None
        assert run.dead_letter.code == "run_timeout"
        assert engine.runs == [event] * 3


async def test_a_flood_on_one_stream_does_not_starve_another(server_url, tmp_path):
    folder = tmp_path / "flows"
    for name in ("flood", "quiet"):
        write_flow(folder, name)
    async with client(server_url) as c:
        for _ in range(200):
            await c.send("flows:flood", {"input_value": "f", "sleep": 0.02})
        async with running(server_url, folder, settings=worker_settings(concurrency=2)):
            await c.entries("flows:flood:results", 5)
            await c.send("flows:quiet", {"input_value": "q"})
            await c.entries("flows:quiet:results", 1)
            assert await c.redis.xlen("flows:flood:results") < 150


async def test_a_drain_finishes_what_runs_and_releases_what_does_not_end(server_url, flows):
    engine = Recording()
    settings = worker_settings(grace=0.2, concurrency=2)
    async with client(server_url) as c:
        async with running(server_url, flows, engine=engine, settings=settings) as worker:
            held = await c.send("flows:echo", {"input_value": "held", "hold": True})
            await asyncio.wait_for(engine.started.wait(), 10)
            assert await worker.stop() == 0
        groups = await c.redis.xinfo_consumers("flows:echo", "headrace")
        assert [g["name"] for g in groups] in ([], ["~parked"])
        again = Recording()
        again.let_go.set()
        async with running(server_url, flows, engine=again):
            run = await c.run(KEYS, held)
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)


async def test_a_target_that_is_no_stream_dead_letters_the_event_and_keeps_its_result(server_url, flows):
    write_flow(flows, "echo", spec={"publish": [{"to": "taken"}]})
    engine = Recording()
    async with client(server_url) as c:
        await c.redis.set("taken", "a string")
        async with running(server_url, flows, engine=engine):
            event = await c.send("flows:echo", {"input_value": "paid for"})
            run = await c.run(KEYS, event)
    assert run.dead_letter is not None
    assert run.dead_letter.code == "publish_refused"
    assert run.result is not None
    assert run.result.text == "paid for"
    assert engine.runs == [event]


async def test_each_worker_identity_is_new_and_leaves_nothing_behind(server_url, flows):
    names = set()
    async with client(server_url) as c:
        for _ in range(3):
            async with running(server_url, flows) as worker:
                names.add(worker.report.worker)
                event = await c.send("flows:echo", {"input_value": "x"})
                await c.run(KEYS, event)
        assert len(names) == 3
        consumers = {g["name"] for g in await c.redis.xinfo_consumers("flows:echo", "headrace")}
        assert consumers <= {"~parked"}


async def test_an_entry_that_is_lost_with_one_worker_after_the_other_is_dead_lettered_undecoded(server_url, flows):
    async with client(server_url) as c:
        await c.broker.streams.ensure_group(KEYS)
        entry = await c.redis.xadd("flows:echo", {"input_value": "x"})
        await c.redis.xreadgroup("headrace", "gone", {"flows:echo": ">"})
        await c.redis.xclaim("flows:echo", "headrace", "gone", 0, [entry], retrycount=99, justid=True)
        await c.redis.zadd(KEYS.leases, {"gone": -1})
        engine = Recording()
        async with running(server_url, flows, engine=engine):
            [_] = await c.entries("flows:echo:dead_letter", 1)
        [letter] = await c.broker.dead_letters.list("flows:echo:dead_letter", count=10)
        assert letter.code == "worker_died"
        assert letter.fields == {"input_value": "x"}
        assert engine.runs == []


async def test_a_rules_target_is_not_trimmed_before_its_route_is_deployed(server_url, flows):
    write_flow(flows, "echo", spec={"publish": [{"to": "later:on"}], "results": {"keep": 1}})
    async with running(server_url, flows), client(server_url) as c:
        events = [await c.send("flows:echo", {"input_value": str(n)}) for n in range(300)]
        await c.run(KEYS, events[-1])
        await c.entries("later:on", 300)


async def test_one_stream_that_redis_refuses_stops_no_other(server_url, flows):
    write_flow(flows, "wrong", spec={"stream": "a:string"})
    async with client(server_url) as c:
        await c.redis.set("a:string", "not a stream")
        async with running(server_url, flows) as worker:
            assert worker.report.ready == ("echo",)
            assert "WRONGTYPE" in worker.report.unready["wrong"][0]
            event = await c.send("flows:echo", {"input_value": "x"})
            assert (await c.run(KEYS, event)).status is RunStatus.COMPLETED


async def test_a_key_expression_that_gives_nothing_swallows_no_event(server_url, flows):
    write_flow(flows, "echo", spec={"idempotency": {"key": "payload.order"}})
    async with running(server_url, flows), client(server_url) as c:
        for _ in range(3):
            await c.send("flows:echo", {"input_value": "x", "order": ""})
        letters = await c.entries("flows:echo:dead_letter", 3)
        assert {letter["dl_code"] for letter in letters} == {"expression_failed"}
