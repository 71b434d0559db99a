"""Processes that die, of ours and of Redis: the event completes all the same, and once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shared_models.result import RunEventType, RunStatus
from tests.support import command, rendezvous
from tests.support.harness import client, running
from tests.support.real import REAL, put
from tests.support.rendezvous import Rendezvous
from tests.support.servers import RedisServer, valkey_binary

pytestmark = REAL

RETRY = {"initial": "10ms", "max": "20ms"}


@asynccontextmanager
async def worker(url: str, flows: Path, home: Path, **environ: str) -> AsyncIterator[command.Running]:
    """A `headrace worker` with the real engine, once it is ready."""
    home.mkdir(exist_ok=True)
    words = ("worker", "--flows", str(flows))
    with command.running(*words, home=home, REDIS_URL=url, **environ) as process:
        await asyncio.to_thread(process.wait_for, "ready")
        yield process


async def test_b15_t43_kill_9_of_a_process_and_then_of_all_of_them(server_url, engine, tmp_path):
    """First the process that runs the event: its supervisor hands it on. Then the whole worker: another takes over."""
    async with Rendezvous() as place, client(server_url) as c:
        keys = put(tmp_path / "flows", "held", rendezvous.flow(place.place), retry=RETRY)
        lease = {"HEADRACE_WORKER__LEASE": "2", "HEADRACE_WORKER__SWEEP_INTERVAL": "0.2"}
        async with worker(server_url, tmp_path / "flows", tmp_path / "home", **lease) as process:
            first = await c.send(keys.stream, {"input_value": "first"})
            met = await place.met()
            assert met.pid not in (os.getpid(), process.pid)
            os.kill(met.pid, signal.SIGKILL)
            again = await place.met(timeout=30)
            assert again.pid != met.pid
            await again.say("once")
            run = await c.run(keys, first)
            # A first death is nobody's fault: it is not charged, and the second execution ran alone.
            assert (run.status, run.attempts, run.result and run.result.text) == (RunStatus.COMPLETED, 1, "once")

            second = await c.send(keys.stream, {"input_value": "second"})
            await place.met(timeout=30)
            os.killpg(process.pid, signal.SIGKILL)
            async with running(server_url, tmp_path / "flows", engine=engine) as other:
                met = await place.met(timeout=30)
                assert met.pid == os.getpid()
                await met.say()
                run = await c.run(keys, second)
                assert (run.status, run.attempts, run.worker) == (RunStatus.COMPLETED, 1, other.report.worker)
        assert place.ledger == ["first", "first", "second", "second"]
        results = await c.entries("flows:held:results", 2)
        assert [r["parent_id"] for r in results] == [first, second]
        assert await c.redis.xlen("flows:held:results") == 2
        assert await c.redis.xlen(keys.stream) == 0
        assert await c.redis.exists("flows:held:dead_letter") == 0


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
async def test_a_delayed_retry_outlives_a_restart_of_redis(engine, tmp_path, how):
    with RedisServer(valkey_binary(), persistent=True) as server:
        async with Rendezvous() as place:
            keys = put(tmp_path, "held", rendezvous.flow(place.place), retry=RETRY)
            async with client(server.url) as c, running(server.url, tmp_path, engine=engine):
                event = await c.send(keys.stream, {"input_value": "x"})
                await (await place.met()).busy(2)
                due = await retried(c, keys, event)
                (server.stop if how == "SIGTERM" else server.kill)()
                server.start()
                await (await place.met()).say("after all")
                run = await c.run(keys, event)
                assert (run.status, run.attempts) == (RunStatus.COMPLETED, 2)
                assert run.started_at is not None
                assert run.started_at >= due
                assert place.ledger == ["x", "x"]
                assert await c.redis.xlen("flows:held:results") == 1


async def test_a_delayed_retry_outlives_a_restart_of_everything(engine, tmp_path):
    with RedisServer(valkey_binary(), persistent=True) as server:
        async with Rendezvous() as place:
            keys = put(tmp_path, "held", rendezvous.flow(place.place), retry=RETRY)
            async with client(server.url) as c, running(server.url, tmp_path, engine=engine):
                event = await c.send(keys.stream, {"input_value": "x"})
                await (await place.met()).busy(2)
                due = await retried(c, keys, event)
            server.restart()
            async with client(server.url) as c, running(server.url, tmp_path, engine=engine):
                await (await place.met()).say("after all")
                run = await c.run(keys, event)
                assert (run.status, run.attempts) == (RunStatus.COMPLETED, 2)
                assert run.started_at is not None
                assert run.started_at >= due


async def test_a_run_that_outlasts_an_outage_is_published_when_redis_is_back(engine, tmp_path):
    with RedisServer(valkey_binary(), persistent=True) as server:
        async with Rendezvous() as place:
            keys = put(tmp_path, "held", rendezvous.flow(place.place), retry=RETRY)
            async with client(server.url) as c, running(server.url, tmp_path, engine=engine):
                event = await c.send(keys.stream, {"input_value": "x"})
                met = await place.met()
                server.kill()
                await met.say("paid for")
                server.start()
                run = await c.run(keys, event)
                assert (run.status, run.attempts, place.ledger) == (RunStatus.COMPLETED, 1, ["x"])
                (result,) = await c.entries("flows:held:results", 1)
                assert json.loads(result["payload"])["input_value"] == "paid for"


async def retried(c: Any, keys: Any, event: str) -> int:
    """Wait until an event was parked for its next attempt; when that is due, in ms."""
    after = "0-0"
    async with asyncio.timeout(20):
        while True:
            for line in await c.broker.runs.feed(keys, event, after=after, block=5):
                after = line.id
                if line.type is RunEventType.RETRY:
                    return int(line.data["due_at"])
