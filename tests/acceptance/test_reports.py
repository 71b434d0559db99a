"""What other systems' users have reported, row by row: each test is named after the reports it answers.

Whole workers (processes) where processes die; a worker on the test's own loop otherwise.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from runtime.broker.client import Broker
from runtime.broker.delivery import Verdict
from runtime.broker.keys import RouteKeys
from runtime.errors import RunFailed
from runtime.settings import RedisSettings
from shared_models.dead_letter import ErrorInfo
from shared_models.result import RunStatus
from tests.chaos.proxy import Proxy
from tests.support.hand import RESULTS as HAND_RESULTS
from tests.support.hand import Hand, make_due, raw, send, sweep
from tests.support.harness import client, running, worker_settings, write_flow
from tests.support.ledger import LedgerEngine, starts, worker_process
from tests.support.real import until
from tests.support.servers import RedisServer, valkey_binary

KEYS = RouteKeys("flows:echo", "headrace")
SHORT = {"lease": 1.0, "sweep_interval": 0.2, "reconcile_interval": 0.3, "poll_interval": 0.2}


class Ledger(LedgerEngine):
    """Knows one trouble more: ``later`` fails the first attempt and asks for so many seconds of peace."""

    async def run(self, flow, request, history, emit):
        if request.attempt == 1 and (seconds := request.payload.get("later")):
            self._write("start", request)
            raise RunFailed(ErrorInfo(code="busy", message="later", retryable=True, retry_after=seconds))
        return await super().run(flow, request, history, emit)


@pytest.fixture
def flows(tmp_path):
    write_flow(tmp_path / "flows", "echo", spec={"retry": {"initial": "10ms", "max": "50ms"}})
    return tmp_path / "flows"


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "ledger"


def executions(ledger):
    return Counter(line["event"] for line in starts(ledger))


async def results(c, count, *, timeout=30.0):
    """Wait until so many results are there; more must not come. The events they belong to."""
    found = [entry["parent_id"] for entry in await c.entries("flows:echo:results", count, timeout=timeout)]
    assert await c.redis.xlen("flows:echo:results") == count
    return found


async def stale(c, count, *, holder="gone"):
    """Events that a worker had read when it died, long ago."""
    await c.redis.xgroup_create(KEYS.stream, KEYS.group, id="0", mkstream=True)
    pipe = c.redis.pipeline(transaction=False)
    for number in range(count):
        pipe.xadd(KEYS.stream, {"event_id": f"e{number}", "payload": '{"input_value":"x"}'})
    await pipe.execute()
    await c.redis.xreadgroup(KEYS.group, holder, {KEYS.stream: ">"}, count=count)
    await c.redis.zadd(KEYS.leases, {holder: 1})


async def at_rest(c):
    """Wait until nothing is pending, parked or in the stream."""

    async def empty():
        return not await c.redis.xlen(KEYS.stream) and not await c.redis.zcard(KEYS.due)

    await until(empty)
    assert (await c.redis.xpending(KEYS.stream, KEYS.group))["pending"] == 0


# --- dead workers ---------------------------------------------------------------------------------------------------


async def test_d1_a_dead_workers_event_is_finished_by_one_of_another_name(server_url, flows, ledger):
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, lease=1.5) as first:
            event = await c.send("flows:echo", {"input_value": "x", "sleep": 1.0})
            await until(lambda: starts(ledger, event))
            first.kill_all()
        with worker_process(server_url, flows, ledger, lease=1.5):
            run = await c.run(KEYS, event)
        assert run.status is RunStatus.COMPLETED
        assert await results(c, 1) == [event]


async def test_d2_t1_recovery_goes_on_though_workers_are_killed_in_the_midst_of_it(server_url, flows, ledger):
    """Nothing is locked while an entry is handed on: kill those who do it, and the next does it within two leases."""
    async with client(server_url) as c:
        await stale(c, 300)
        for kill_after in (1, 100):
            with worker_process(server_url, flows, ledger, reading=0, lease=1.0, sweep_interval=0.05) as worker:
                await until(lambda: len(starts(ledger)) >= kill_after)  # noqa: B023  waited for in this round
                worker.kill_all()
        with worker_process(server_url, flows, ledger, lease=1.0):
            assert len(set(await results(c, 300))) == 300
            await at_rest(c)


async def test_b14_a_client_that_knows_only_the_streams_gets_each_events_result_from_whichever_replica(
    server_url, flows, ledger
):
    """Three workers; some events fail for good. Each event ends in the results or the dead letters, once."""
    async with client(server_url) as c, AsyncExitStack() as stack:
        replicas = [stack.enter_context(worker_process(server_url, flows, ledger, reading=0)) for _ in range(3)]
        for replica in replicas:
            replica.wait_for("child.reading")
        pipe = c.redis.pipeline(transaction=False)
        for n in range(150):
            payload = {"input_value": str(n), "sleep": 0.02, "fail_first": 99 if n % 10 == 0 else 0}
            pipe.xadd("flows:echo", {"event_id": f"e{n}", "payload": json.dumps(payload)})
        await pipe.execute()
        good = {entry["parent_id"]: entry for entry in await c.entries("flows:echo:results", 135)}
        bad = {entry["dl_event_id"] for entry in await c.entries("flows:echo:dead_letter", 15)}
        assert all(json.loads(entry["payload"])["input_value"] == event[1:] for event, entry in good.items())
        assert sorted([*good, *bad]) == sorted(f"e{n}" for n in range(150))
        await at_rest(c)
        assert (await c.redis.xlen("flows:echo:results"), await c.redis.xlen("flows:echo:dead_letter")) == (135, 15)
        assert len({line["pid"] for line in starts(ledger)}) == 3, "each of them has run some"


async def test_b8_five_thousand_events_leave_as_many_connections_and_files_open_as_some_hundred(
    server_url, flows, ledger
):
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, concurrency=40) as worker:
            [child] = worker.children()

            async def opened(events):
                for _ in range(0, events, 500):
                    pipe = c.redis.pipeline(transaction=False)
                    for _ in range(500):
                        pipe.xadd("flows:echo", {"input_value": "x"})
                    await pipe.execute()
                    await at_rest(c)
                files = [len(os.listdir(f"/proc/{pid}/fd")) for pid in (worker.pid, worker.zygote, child)]
                return [*files, len(await c.redis.client_list())]

            few = await opened(1000)
            many = await opened(4000)
            # A moment's crowd may have opened a line or two more.
            assert max(b - a for a, b in zip(few, many, strict=True)) <= 4, (few, many)
            assert worker.children() == [child]
        assert await c.redis.xlen("flows:echo:results") == 5000


async def test_d13_t17_two_hundred_restarts_leave_no_consumers(server_url, flows):
    """Every other one ends without a word, as a crash does: it has read, and is heard of no more."""
    settings = worker_settings(**{**SHORT, "lease": 0.5, "sweep_interval": 0.1})
    async with client(server_url) as c, running(server_url, flows, settings=settings):
        for number in range(100):
            async with running(server_url, flows, settings=settings):
                pass
            crashed = Hand(c.broker, f"crashed-{number}", KEYS)
            await crashed.renew(0.2)
            await crashed.fetch()
            await c.send("flows:echo", {"input_value": "x"})
            await crashed.fetch(1)

        async def few():
            return len(await c.redis.xinfo_consumers(KEYS.stream, KEYS.group)) <= 1 + 2

        await until(few)
        await results(c, 100)


async def test_d16_t2_eight_workers_on_ten_thousand_stale_entries(server_url, flows, ledger):
    async with client(server_url) as c:
        await stale(c, 10_000)
        often = {"processes": 4, "concurrency": 50, "sweep_interval": 0.05, "lease": 10.0, "reading": 0}
        with worker_process(server_url, flows, ledger, **often), worker_process(server_url, flows, ledger, **often):
            found = await results(c, 10_000, timeout=90)
        assert len(set(found)) == 10_000
        assert set(executions(ledger).values()) == {1}
        assert await c.redis.xlen(KEYS.stream) == 0


# --- time -----------------------------------------------------------------------------------------------------------


async def test_d4_t5_entries_do_not_age_while_they_wait_for_a_slot(server_url, flows, ledger):
    """Two workers with one slot each, and a backlog far older than their leases: no more is read than can run."""
    settings = worker_settings(**{**SHORT, "lease": 0.5, "sweep_interval": 0.1, "concurrency": 1})
    async with client(server_url) as c, AsyncExitStack() as stack:
        events = [await c.send("flows:echo", {"input_value": "x", "sleep": 0.2}) for _ in range(20)]
        for _ in range(2):
            await stack.enter_async_context(running(server_url, flows, engine=Ledger(str(ledger)), settings=settings))
        assert sorted(await results(c, 20)) == sorted(events)
        assert executions(ledger) == dict.fromkeys(events, 1)


async def test_t6_a_lone_worker_does_not_take_back_what_it_runs(server_url, flows, ledger):
    """It sweeps and reconciles many times while the run goes on far beyond its lease; an attempt is an attempt."""
    settings = worker_settings(**{**SHORT, "lease": 0.4, "sweep_interval": 0.05, "reconcile_interval": 0.1})
    async with (
        client(server_url) as c,
        running(server_url, flows, engine=Ledger(str(ledger)), settings=settings),
    ):
        event = await c.send("flows:echo", {"input_value": "x", "sleep": 2.5})
        run = await c.run(KEYS, event)
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)
        assert await results(c, 1) == [event]
        await at_rest(c)
    assert executions(ledger) == {event: 1}


async def test_t8_a_failure_at_the_end_of_the_lease_does_not_make_two_of_one(server_url):
    """A thousand times: the retry is recorded, or the entry is handed on, in whatever order; never both run."""
    broker = Broker.connect(server_url, RedisSettings())
    draw = random.Random(8)
    try:
        for first in range(0, 1000, 50):
            other = await Hand.ready(broker, "other", KEYS)
            failing, ran = [], Counter[str]()
            for number in range(first, first + 50):
                mine = await Hand.ready(broker, f"w{number}", KEYS)
                await send(broker, f"e{number}", KEYS.stream)
                failing.append((mine, await mine.begin(await mine.one())))
            steps = [mine.expire() for mine, _ in failing] + [mine.retry(begun) for mine, begun in failing]
            steps += [sweep(broker, KEYS) for _ in range(10)]
            draw.shuffle(steps)
            await asyncio.gather(*steps)
            while ran.total() < 50:
                await asyncio.gather(sweep(broker, KEYS), make_due(broker, KEYS))
                for delivery in await other.fetch(50):
                    again = await other.begin(delivery)
                    if again.grant.verdict is Verdict.RUN:
                        ran[again.claim.event_id] += 1
                        await other.complete(again)
            assert set(ran.values()) == {1}
            assert await raw(broker, "XLEN", HAND_RESULTS) == 50
            assert await raw(broker, "XLEN", KEYS.stream) == 0
            await raw(broker, "FLUSHALL")
    finally:
        await broker.close()


async def test_t33_an_event_that_is_delayed_far_beyond_the_lease_runs_once(server_url, flows, ledger):
    settings = worker_settings(**{**SHORT, "lease": 0.4, "sweep_interval": 0.1})
    async with client(server_url) as c, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(running(server_url, flows, engine=Ledger(str(ledger)), settings=settings))
        event = await c.send("flows:echo", {"input_value": "x", "later": 2.0})
        run = await c.run(KEYS, event)
        first, second = starts(ledger, event)
        assert second["at"] - first["at"] >= 2.0
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 2)


async def test_t34_delayed_events_run_when_they_are_due_though_redis_restarts(flows, ledger):
    with RedisServer(valkey_binary(), persistent=True, config=("--appendfsync", "always")) as server:
        settings = worker_settings(**SHORT)
        async with (
            client(server.url) as c,
            running(server.url, flows, engine=Ledger(str(ledger)), settings=settings),
        ):
            events = [await c.send("flows:echo", {"input_value": "x", "later": 2.0}) for _ in range(5)]

            async def delayed():
                return await c.redis.zcard(KEYS.due) == 5

            await until(delayed)
            server.restart()
            for event in events:
                run = await c.run(KEYS, event)
                assert (run.status, run.attempts) == (RunStatus.COMPLETED, 2)
                first, second = starts(ledger, event)
                assert 2.0 <= second["at"] - first["at"] < 5.0


# --- groups and streams ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["FLUSHALL", "DEL", "XGROUP DESTROY"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_d5_t10_t12_a_worker_heals_its_group_and_goes_on(server_url, flows, ledger, caplog, trouble, busy):
    """What was published after the loss and before the healing is read: within 5 s, without a flood of lines."""
    caplog.set_level(logging.WARNING)
    command = {"FLUSHALL": ["FLUSHALL"], "DEL": ["DEL", KEYS.stream]}
    words = command.get(trouble, ["XGROUP", "DESTROY", KEYS.stream, KEYS.group])
    async with (
        client(server_url) as c,
        running(server_url, flows, engine=Ledger(str(ledger)), settings=worker_settings(**SHORT)),
    ):
        if busy:
            event = await c.send("flows:echo", {"input_value": "x", "sleep": 0.5})
            await until(lambda: starts(ledger, event))
        pipe = c.redis.pipeline(transaction=True)
        pipe.execute_command(*words)
        for number in range(10):
            pipe.xadd(KEYS.stream, {"event_id": f"e{number}", "payload": '{"input_value":"x"}'})
        began = time.monotonic()
        await pipe.execute()
        for number in range(10):
            assert (await c.run(KEYS, f"e{number}")).status is RunStatus.COMPLETED
        assert time.monotonic() - began < 5
        await at_rest(c)
    assert max(Counter(executions(ledger)).values()) == 1
    assert len(caplog.records) <= 10


async def test_d6_a_group_that_was_destroyed_does_not_run_what_is_done_again(server_url, flows, ledger):
    """Another group keeps the entries in the stream; the gate knows that they are done."""
    async with (
        client(server_url) as c,
        running(server_url, flows, engine=Ledger(str(ledger)), settings=worker_settings(**SHORT)),
    ):
        await c.redis.xgroup_create(KEYS.stream, "archive", id="0", mkstream=True)
        events = [await c.send("flows:echo", {"input_value": "x"}) for _ in range(100)]
        assert sorted(await results(c, 100)) == sorted(events)
        assert await c.redis.xlen(KEYS.stream) == 100
        await c.redis.xgroup_destroy(KEYS.stream, KEYS.group)
        last = await c.send("flows:echo", {"input_value": "x"})
        assert (await c.run(KEYS, last)).status is RunStatus.COMPLETED
        assert executions(ledger) == dict.fromkeys([*events, last], 1)
        assert len(await results(c, 101)) == 101


async def test_d7_t13_what_was_sent_before_the_first_start_is_processed(server_url, flows, ledger):
    """Eight workers make the group at once; none of them minds."""
    async with client(server_url) as c, AsyncExitStack() as stack:
        events = [await c.send("flows:echo", {"input_value": "x"}) for _ in range(100)]
        settings = worker_settings(**{**SHORT, "lease": 5.0})
        engine = Ledger(str(ledger))
        workers = [running(server_url, flows, engine=engine, settings=settings) for _ in range(8)]
        await asyncio.gather(*(stack.enter_async_context(worker) for worker in workers))
        assert sorted(await results(c, 100)) == sorted(events)
        assert executions(ledger) == dict.fromkeys(events, 1)


async def test_t15_entries_that_were_trimmed_while_pending_block_nothing(server_url, flows, ledger):
    async with client(server_url) as c:
        await stale(c, 20)
        await c.redis.xtrim(KEYS.stream, maxlen=0, approximate=False)
        settings = worker_settings(**{**SHORT, "audit_interval": 0.2})
        async with running(server_url, flows, engine=Ledger(str(ledger)), settings=settings):
            event = await c.send("flows:echo", {"input_value": "x"})
            assert (await c.run(KEYS, event)).status is RunStatus.COMPLETED

            async def nothing_pending():
                return (await c.redis.xpending(KEYS.stream, KEYS.group))["pending"] == 0

            await until(nothing_pending)
            assert executions(ledger) == {event: 1}
            await at_rest(c)


async def test_t19_retention_never_trims_what_a_route_has_yet_to_settle(server_url, tmp_path):
    """A route whose outcomes go to another's stream, and keep five: all of them are there when that one starts."""
    write_flow(tmp_path, "first", spec={"results": {"stream": "flows:echo", "keep": 5}})
    write_flow(tmp_path, "echo")
    async with client(server_url) as c:
        await c.redis.xgroup_create(KEYS.stream, KEYS.group, id="0", mkstream=True)
        async with running(server_url, tmp_path, only=["first"], settings=worker_settings(**SHORT)):
            for _ in range(200):
                await c.send("flows:first", {"input_value": "x"})
            await c.entries("flows:echo", 200)
        assert await c.redis.xlen("flows:echo") == 200
        async with running(server_url, tmp_path, only=["echo"], settings=worker_settings(**SHORT)):
            await results(c, 200)


# --- the connection -------------------------------------------------------------------------------------------------


async def test_t23_a_worker_consumes_again_after_each_of_twenty_resets(server, flows, ledger):
    proxy = await Proxy(server.port).start()
    try:
        async with (
            client(server.url) as c,
            running(proxy.url, flows, engine=Ledger(str(ledger)), settings=worker_settings(**SHORT)),
        ):
            for _ in range(20):
                proxy.reset()
                event = await c.send("flows:echo", {"input_value": "x"})
                assert (await c.run(KEYS, event, timeout=5)).status is RunStatus.COMPLETED
            assert set(executions(ledger).values()) == {1}
    finally:
        await proxy.close()


async def test_t28_an_error_of_a_renewal_does_not_end_the_renewals(server_url, flows, ledger):
    """For a while the leases are no sorted set at all; the run goes on, and nobody takes it."""
    async with client(server_url) as c:
        with (
            worker_process(server_url, flows, ledger, **{**SHORT, "lease": 3.0}) as first,
            worker_process(server_url, flows, ledger, **{**SHORT, "lease": 3.0}),
        ):
            event = await c.send("flows:echo", {"input_value": "x", "sleep": 5.0})
            await until(lambda: starts(ledger, event))
            await c.redis.config_resetstat()
            pipe = c.redis.pipeline(transaction=True)
            pipe.rename(KEYS.leases, "aside").set(KEYS.leases, "no sorted set")
            await pipe.execute()

            async def failed():
                errors = await c.redis.info("commandstats")
                return errors.get("cmdstat_zscore", {}).get("failed_calls", 0) >= 4

            await until(failed)
            pipe = c.redis.pipeline(transaction=True)
            pipe.delete(KEYS.leases).rename("aside", KEYS.leases)
            await pipe.execute()
            run = await c.run(KEYS, event)
            assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)
            assert executions(ledger) == {event: 1}
            assert not [line for line in first.lines if "child.ended" in line]


# --- the worker's own processes -------------------------------------------------------------------------------------


async def test_a_worker_whose_zygote_is_killed_drains_ends_and_leaves_nothing(server_url, flows, ledger):
    """Nobody waits for a dead zygote's children: the supervisor sees for itself that they have ended."""
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=2, grace=2.0) as worker:
            event = await c.send("flows:echo", {"input_value": "x", "sleep": 60})
            [line] = await until(lambda: starts(ledger, event))
            (zygote,) = {_parent(pid) for pid in worker.children()}
            began = time.monotonic()
            os.kill(zygote, signal.SIGKILL)
            await until(lambda: worker.ended is not None)
            assert time.monotonic() - began < 10
            assert worker.ended == 4
        assert (await c.broker.runs.get(KEYS, event)).attempts == 0
        assert {x["name"] for x in await c.redis.xinfo_consumers(KEYS.stream, KEYS.group)} == {"~parked"}
        assert line["pid"] not in worker.children()


async def test_the_many_that_a_death_leaves_run_alone_one_after_the_other_in_few_processes(server_url, flows, ledger):
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, concurrency=30, lease=15.0) as worker:
            events = [await c.send("flows:echo", {"input_value": "x", "sleep": 0.3}) for _ in range(30)]
            first = await until(lambda: len(starts(ledger)) >= 30 and starts(ledger))
            os.kill(first[0]["pid"], signal.SIGKILL)
            runs = [await c.run(KEYS, event, timeout=60) for event in events]
            worker.wait_for("child.ended")
        assert {(run.status, run.attempts) for run in runs} == {(RunStatus.COMPLETED, 1)}
        again = Counter(line["pid"] for line in starts(ledger)[30:])
        assert sum(again.values()) <= 30
        assert len(again) <= 4


def _parent(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[1])
