"""Who takes a slot and for how long; who waits for whom, and how often that is told."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from runtime.broker.keys import RouteKeys
from runtime.engine.echo import EchoEngine
from runtime.worker import admission, execution, settler
from runtime.worker.settler import Settler
from shared_models.result import RunStatus
from tests.support.harness import client, running, worker_settings, write_flow
from tests.support.ledger import starts, worker_process

KEYS = RouteKeys("flows:echo", "headrace")


class Held(EchoEngine):
    """Holds the first run until it is let go; that run swallows its cancellation."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.runs: list[str] = []
        self.begun = asyncio.Event()
        self.second = asyncio.Event()

    async def run(self, flow, request, history, emit):
        self.runs.append(request.event_id)
        if len(self.runs) > 1:
            self.second.set()
        self.begun.set()
        while len(self.runs) == 1 and not self.let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.let_go.wait()
        return await super().run(flow, request, history, emit)


async def test_a_run_that_swallows_its_cancellation_keeps_its_slot(server_url, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "CANCEL_GRACE", 0.1)
    write_flow(tmp_path, "echo", spec={"timeout": "100ms", "retry": {"max_attempts": 1}})
    engine, settings = Held(), worker_settings(concurrency=1)
    async with running(server_url, tmp_path, engine=engine, settings=settings), client(server_url) as c:
        stuck = await c.send("flows:echo", {"input_value": "stuck"})
        run = await c.run(KEYS, stuck)
        assert run.dead_letter is not None
        assert run.dead_letter.code == "run_timeout"  # told at once, though it still runs
        after = await c.send("flows:echo", {"input_value": "after"})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.second.wait(), 0.5)
        engine.let_go.set()
        assert (await c.run(KEYS, after)).status is RunStatus.COMPLETED
        assert engine.runs == [stuck, after]


async def test_a_process_with_too_many_runs_that_do_not_end_is_replaced(server_url, tmp_path):
    """And its end does not wait for them."""
    flows = tmp_path / "flows"
    write_flow(flows, "echo", spec={"timeout": "200ms", "retry": {"max_attempts": 1}})
    async with client(server_url) as c:
        with worker_process(server_url, flows, tmp_path / "ledger", concurrency=4, cancel_grace=0.2) as worker:
            for _ in range(2):
                await c.send("flows:echo", {"swallow": True})
            assert "2 of its runs do not end" in worker.wait_for("worker.recycled")[0]
            worker.wait_for("child.reading", count=2)
            assert "exit code 0" in worker.wait_for("child.ended")[0]
            event = await c.send("flows:echo", {"input_value": "x"})
            assert (await c.run(KEYS, event)).status is RunStatus.COMPLETED
            await c.send("flows:echo", {"swallow": True})
            worker.wait_for("run.uncancellable", count=3)
            assert worker.end() == 0


async def test_a_duplicate_that_waits_says_so_once(server_url, tmp_path, monkeypatch):
    monkeypatch.setattr(admission, "FIRST_WAIT", 0.01)
    write_flow(tmp_path, "echo")
    engine = Held()
    async with client(server_url) as c:
        with capture_logs() as lines:
            async with running(server_url, tmp_path, engine=engine):
                first = await c.send("flows:echo", {"input_value": "a"}, idempotency_key="k")
                await asyncio.wait_for(engine.begun.wait(), 10)
                second = await c.send("flows:echo", {"input_value": "b"}, idempotency_key="k")
                async with asyncio.timeout(10):
                    while sum(line["event"] == "event.waits" for line in lines) < 4:
                        await c.redis.xread({"never": "$"}, block=20)
                engine.let_go.set()
                await c.run(KEYS, first)
                assert (await c.run(KEYS, second)).duplicate_of == first
    waits = [line["log_level"] for line in lines if line["event"] == "event.waits"]
    assert waits[0] == "info"
    assert set(waits[1:]) == {"debug"}


async def test_a_process_in_which_every_delivery_crashes_is_replaced(server_url, tmp_path):
    """A component has broken what it shares with the worker: it looks alive, takes every event and runs none."""
    write_flow(tmp_path / "flows", "echo")
    async with client(server_url) as c:
        with worker_process(server_url, tmp_path / "flows", tmp_path / "ledger") as worker:
            assert (await c.run(KEYS, await c.send("flows:echo", {"break": True}))).status is RunStatus.COMPLETED
            run = await c.run(KEYS, await c.send("flows:echo", {"input_value": "x"}))
            assert "deliveries in a row have crashed" in worker.wait_for("worker.recycled")[0]
            assert len([line for line in worker.lines if "delivery.crashed" in line]) <= 2
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)


async def test_a_run_that_a_fault_of_ours_forgot_is_taken_over_by_its_own_worker(server_url, tmp_path, monkeypatch):
    """Its gate says that this worker runs it, and this worker lives: nobody else could ever end it."""
    settle, failed = Settler.settle, list[str]()

    async def fails_once(self, work, outcome):
        if not failed:
            failed.append(work.claim.event_id)
            raise RuntimeError("a fault of ours")
        await settle(self, work, outcome)

    monkeypatch.setattr(Settler, "settle", fails_once)
    write_flow(tmp_path, "echo")
    async with running(server_url, tmp_path), client(server_url) as c:
        event = await c.send("flows:echo", {"input_value": "x"})
        run = await c.run(KEYS, event)
        assert failed == [event]
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 2)
        assert await c.redis.xlen("flows:echo") == 0


async def test_an_entry_whose_gate_was_written_over_takes_no_slot(server_url, tmp_path, monkeypatch):
    monkeypatch.setattr(settler, "REFUSED_AGAIN", 0.3)
    write_flow(tmp_path, "echo")
    async with client(server_url) as c:
        await c.redis.set(KEYS.gate("bad"), "a string")
        async with running(server_url, tmp_path, settings=worker_settings(concurrency=1)):
            await c.send("flows:echo", {"input_value": "bad"}, event_id="bad")
            good = await c.send("flows:echo", {"input_value": "good"})
            assert (await c.run(KEYS, good)).status is RunStatus.COMPLETED
            await c.redis.delete(KEYS.gate("bad"))
            assert (await c.run(KEYS, "bad")).status is RunStatus.COMPLETED


async def test_a_neighbour_that_blocks_the_loop_costs_nobody_an_attempt(server_url, tmp_path):
    """A timeout counts the time that a run was given. The blocker's own counts what it took from the others."""
    flows, ledger = tmp_path / "flows", tmp_path / "ledger"
    write_flow(flows, "echo", spec={"timeout": "1s", "retry": {"max_attempts": 1}})
    write_flow(flows, "blocker", spec={"timeout": "20s", "retry": {"max_attempts": 1}})
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, concurrency=10):
            innocent = [await c.send("flows:echo", {"input_value": "ok", "naps": 6}) for _ in range(3)]
            for event in innocent:
                async for _ in lines_of(c, event):
                    break
            blocker = await c.send("flows:blocker", {"input_value": "done", "block": 1.5})
            too_long = await c.send("flows:echo", {"input_value": "never", "sleep": 60})
            runs = [await c.run(KEYS, event) for event in innocent]
            ended = await c.run(RouteKeys("flows:blocker", "headrace"), blocker)
            late = await c.run(KEYS, too_long)
        assert [(run.status, run.attempts) for run in runs] == [(RunStatus.COMPLETED, 1)] * 3
        assert ended.status is RunStatus.COMPLETED
        assert late.dead_letter is not None
        assert late.dead_letter.code == "run_timeout"
        assert [len(starts(ledger, event)) for event in innocent] == [1] * 3


async def lines_of(c, event):
    """The lines of an event's feed as they come: the first says that it has begun."""
    after = "0-0"
    async with asyncio.timeout(10):
        while True:
            for line in await c.broker.runs.feed(KEYS, event, after=after, block=5):
                after = line.id
                yield line
