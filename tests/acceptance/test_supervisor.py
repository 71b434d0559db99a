"""The supervisor on a real server: deaths, hangs, suspects, drains, recycling, its own end."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from runtime.broker.keys import RouteKeys
from shared_models.result import RunStatus
from tests.support.harness import client, running, write_flow
from tests.support.ledger import LedgerEngine, read_ledger, starts, worker_process
from tests.support.real import until

KEYS = RouteKeys("flows:echo", "headrace")


@pytest.fixture
def flows(tmp_path):
    write_flow(tmp_path / "flows", "echo", spec={"retry": {"initial": "10ms", "max": "50ms"}})
    return tmp_path / "flows"


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "ledger"


async def started(ledger, event, count=1, timeout=20.0):
    """Wait until an execution of ``event`` has begun ``count`` times."""
    from watchfiles import awatch

    if len(starts(ledger, event)) < count:
        async for _ in awatch(ledger.parent, rust_timeout=200, yield_on_timeout=True):
            if len(starts(ledger, event)) >= count:
                break
            timeout -= 0.2
            assert timeout > 0, f"not begun {count} times: {read_ledger(ledger)}"
    return starts(ledger, event)


async def test_the_entries_of_a_killed_child_run_again_at_once_and_cost_no_attempt(server_url, flows, ledger):
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=2, lease=15.0):
            event = await c.send("flows:echo", {"input_value": "x", "sleep": 1.0})
            [first] = await started(ledger, event)
            os.kill(first["pid"], signal.SIGKILL)
            killed = time.clock_gettime(time.CLOCK_BOOTTIME)
            [_, again] = await started(ledger, event, 2)
            run = await c.run(KEYS, event)
            known = {worker.pid for worker in await c.broker.fleet.workers()}
        assert again["at"] - killed < 5, "not after the lease of 15 s, but when the child was waited for"
        assert first["pid"] not in known
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)
        assert await c.redis.xlen("flows:echo:results") == 1


@pytest.mark.parametrize("how", ["exit", "quit", "segv"])
async def test_d8_t40_an_event_that_kills_its_process_is_dead_lettered_and_the_innocent_lose_nothing(
    server_url, flows, ledger, how
):
    """At most max_attempts + 1 executions; those beside it keep every attempt."""
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=1, concurrency=12) as worker:
            beside = [await c.send("flows:echo", {"input_value": "ok", "sleep": 0.7}) for _ in range(10)]
            for event in beside:
                await started(ledger, event)
            killer = await c.send("flows:echo", {how: True})
            run = await c.run(KEYS, killer, timeout=60)
            runs = [await c.run(KEYS, event, timeout=60) for event in beside]
            assert worker.end() == 0
        assert run.dead_letter is not None
        assert (run.status, run.dead_letter.code) == (RunStatus.DEAD_LETTERED, "worker_died")
        assert 3 <= len(starts(ledger, killer)) <= 4
        assert {r.status for r in runs} == {RunStatus.COMPLETED}
        assert {r.attempts for r in runs} == {1}
        assert [line for line in worker.lines if "entries.handed_on" in line], "at once, not after its lease"
        assert await c.redis.xlen("flows:echo:results") == 10


async def test_a_loop_that_hangs_is_killed_and_only_the_culprit_is_charged(server_url, flows, ledger):
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=1, concurrency=5, hang_timeout=2.0) as worker:
            beside = await c.send("flows:echo", {"input_value": "ok", "sleep": 0.8})
            await started(ledger, beside)
            culprit = await c.send("flows:echo", {"block": 600})
            run = await c.run(KEYS, culprit, timeout=90)
            other = await c.run(KEYS, beside, timeout=60)
            worker.wait_for("child.hangs", count=3)
        assert (run.status, run.dead_letter and run.dead_letter.code) == (RunStatus.DEAD_LETTERED, "worker_died")
        assert len(starts(ledger, culprit)) <= 4
        assert (other.status, other.attempts) == (RunStatus.COMPLETED, 1)


async def test_one_that_holds_the_interpreter_from_a_thread_is_found_out(server_url, flows, ledger):
    """Nobody can be seen then: those beside it lose no attempt, and it does not run for ever."""
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=1, concurrency=5, hang_timeout=1.5):
            beside = await c.send("flows:echo", {"input_value": "ok", "sleep": 0.8})
            await started(ledger, beside)
            culprit = await c.send("flows:echo", {"hold": 600})
            run = await c.run(KEYS, culprit, timeout=60)
            other = await c.run(KEYS, beside, timeout=60)
        assert (run.status, run.dead_letter and run.dead_letter.code) == (RunStatus.DEAD_LETTERED, "worker_died")
        assert len(starts(ledger, culprit)) <= 4
        assert (other.status, other.attempts) == (RunStatus.COMPLETED, 1)


async def test_t31_a_component_that_blocks_the_loop_is_interrupted_at_its_timeout(server_url, flows, ledger):
    """The run fails as a timeout and its slot is free again; the process, and what runs beside it, live on."""
    write_flow(flows, "slow", spec={"timeout": "1s", "retry": {"max_attempts": 1}})
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=1, concurrency=2, hang_timeout=30.0) as worker:
            beside = await c.send("flows:echo", {"input_value": "ok", "sleep": 0.5})
            await started(ledger, beside)
            blocker = await c.send("flows:slow", {"block": 600})
            run = await c.run(RouteKeys("flows:slow", "headrace"), blocker, timeout=25)
            other = await c.run(KEYS, beside)
            for event in [await c.send("flows:echo", {"input_value": "both slots", "sleep": 60}) for _ in range(2)]:
                await started(ledger, event)
            assert not [line for line in worker.lines if "child.ended" in line]
        assert run.dead_letter is not None
        assert run.dead_letter.code == "run_timeout"
        assert (other.status, other.attempts) == (RunStatus.COMPLETED, 1)


async def test_d3_t3_t32_a_run_far_longer_than_the_lease_is_executed_once(server_url, flows, ledger):
    """Renewed from outside, whether the loop turns or not."""
    async with client(server_url) as c:
        with (
            worker_process(server_url, flows, ledger, processes=1, lease=0.6, sweep_interval=0.1),
            worker_process(server_url, flows, ledger, processes=1, lease=0.6, sweep_interval=0.1),
        ):
            long = await c.send("flows:echo", {"input_value": "x", "sleep": 6.0})
            blocking = await c.send("flows:echo", {"input_value": "x", "block": 3.0})
            runs = [await c.run(KEYS, event) for event in (long, blocking)]
        assert [r.attempts for r in runs] == [1, 1]
        assert [len(starts(ledger, event)) for event in (long, blocking)] == [1, 1]
        assert await c.redis.xlen("flows:echo:results") == 2


async def test_a_worker_that_is_gone_as_a_whole_is_taken_over_after_its_lease(server_url, flows, ledger):
    async with client(server_url) as c:
        with (
            worker_process(server_url, flows, ledger, processes=1, lease=2.0) as first,
            worker_process(server_url, flows, ledger, processes=1, lease=2.0) as second,
        ):
            event = await c.send("flows:echo", {"input_value": "x", "sleep": 1.5})
            [line] = await started(ledger, event)
            gone = first if line["pid"] in first.children() else second
            gone.kill_all()
            run = await c.run(KEYS, event)
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)
        assert await c.redis.xlen("flows:echo:results") == 1


async def test_a_worker_that_was_stopped_longer_than_its_lease_writes_nothing(server_url, flows, ledger):
    """What it held is another's; on waking it is killed within a second, under a new name it goes on."""
    async with client(server_url) as c:
        with (
            worker_process(server_url, flows, ledger, processes=1, lease=1.5) as first,
            worker_process(server_url, flows, ledger, processes=1, lease=1.5) as second,
        ):
            event = await c.send("flows:echo", {"input_value": "x", "sleep": 2.0})
            [line] = await started(ledger, event)
            stopped = first if line["pid"] in first.children() else second
            stopped.kill_all(signal.SIGSTOP)
            run = await c.run(KEYS, event)
            stopped.kill_all(signal.SIGCONT)
            stopped.wait_for("lease.lost")
            stopped.wait_for("child.reading", count=2)
            last = await c.send("flows:echo", {"input_value": "y"})
            assert (await c.run(KEYS, last)).status is RunStatus.COMPLETED
        assert run.status is RunStatus.COMPLETED
        assert await c.redis.xlen("flows:echo:results") == 2


async def test_a_supervisor_that_is_killed_takes_its_children_along_and_nothing_is_lost(server_url, flows, ledger):
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=2) as worker:
            event = await c.send("flows:echo", {"input_value": "x", "sleep": 60})
            await started(ledger, event)
            children = worker.children()
            assert len(children) == 2
            worker.kill()
            worker.wait_for("supervisor.gone", count=2)
            worker.wait_for("worker.drained", count=2)
        run = await c.broker.runs.get(KEYS, event)
        assert run is not None
        assert (run.status, run.attempts) == (RunStatus.QUEUED, 0)


async def test_children_are_recycled_without_losing_an_event(server_url, flows, ledger):
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=1, max_runs=20) as worker:
            events = [await c.send("flows:echo", {"input_value": "x", "sleep": 0.01}) for _ in range(100)]
            runs = [await c.run(KEYS, event, timeout=60) for event in events]
            worker.wait_for("worker.recycled", count=1)
        assert {r.status for r in runs} == {RunStatus.COMPLETED}
        assert {r.attempts for r in runs} == {1}
        assert len(starts(ledger)) == 100


QUICK_END = {f"runtime.worker.deadlines.{name}": 0.5 for name in ("LAST_WRITES", "GOODBYE", "MARGIN")}


async def test_a_recycled_child_that_does_not_end_is_killed_and_its_runs_lose_nothing(server_url, flows, ledger):
    async with client(server_url) as c:
        with worker_process(
            server_url, flows, ledger, processes=1, max_runs=1, grace=2.5, hang_timeout=300, patch=QUICK_END
        ) as worker:
            event = await c.send("flows:echo", {"after": 2.0, "block": 600})
            await started(ledger, event)
            await c.send("flows:echo", {"input_value": "the one that is enough"})
            worker.wait_for("worker.recycled")
            worker.wait_for("did not drain in time")
            [first, again] = await started(ledger, event, 2)
        assert (first["attempt"], again["attempt"]) == (1, 1)
        assert not [line for line in worker.lines if "event.alone" in line], "it is not even suspected"


async def test_one_that_kills_a_child_in_its_recycling_is_charged(server_url, flows, ledger):
    write_flow(flows, "echo", spec={"retry": {"max_attempts": 1}})
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=1, max_runs=1) as worker:
            event = await c.send("flows:echo", {"after": 1.5, "exit": True})
            await started(ledger, event)
            await c.send("flows:echo", {"input_value": "the one that is enough"})
            worker.wait_for("worker.recycled")
            run = await c.run(KEYS, event)
        assert (run.status, run.dead_letter and run.dead_letter.code) == (RunStatus.DEAD_LETTERED, "worker_died")
        assert len(starts(ledger, event)) == 2


@pytest.mark.parametrize("asked", [False, True], ids=["recycled", "sigterm"])
async def test_a_worker_that_is_killed_while_it_drains_excuses_its_runs_only_if_it_was_asked_to_end(
    server_url, flows, ledger, asked
):
    """A flow that takes all memory has its process recycled, and then kills the whole worker: that must not be free."""
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=1, max_runs=1, lease=1.5, grace=30) as first:
            event = await c.send("flows:echo", {"input_value": "x", "sleep": 2.0})
            await started(ledger, event)
            if asked:
                first.kill(signal.SIGTERM)
                first.wait_for("worker.ending")
            else:
                await c.send("flows:echo", {"input_value": "the one that is enough"})
                first.wait_for("worker.recycled")
            first.kill_all()
        with worker_process(server_url, flows, ledger, processes=1, lease=1.5) as second:
            run = await c.run(KEYS, event)
            suspected = [line for line in second.lines if "event.alone" in line]
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)
        assert bool(suspected) is not asked


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["sigterm", "sighup"])
async def test_d11_t37_sigterm_during_runs_costs_no_attempt_and_leaves_no_consumer(server_url, flows, ledger, number):
    """SIGHUP comes to every process of it, twice, when its terminal closes."""
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=2, grace=1.0, concurrency=3) as worker:
            short = await c.send("flows:echo", {"input_value": "x", "sleep": 0.5})
            long = await c.send("flows:echo", {"input_value": "x", "sleep": 60})
            for event in (short, long):
                await started(ledger, event)
            if number == signal.SIGHUP:
                worker.kill_all(number)
                worker.wait_for("worker.signalled")
                worker.kill_all(number)
            assert (worker.end() if number == signal.SIGTERM else worker.ended_with()) == 0
        assert (await c.run(KEYS, short)).attempts == 1
        record = await c.broker.runs.get(KEYS, long)
        assert record is not None
        assert (record.status, record.attempts) == (RunStatus.QUEUED, 0)
        consumers = {x["name"] for x in await c.redis.xinfo_consumers("flows:echo", "headrace")}
        assert consumers == {"~parked"}


async def test_t36_a_storm_of_sigterms_during_reads_loses_nothing_and_runs_nothing_twice(server_url, flows, ledger):
    """Worker after worker is told to end, more than once, while it reads from a backlog; the last one finishes it."""
    async with client(server_url) as c:
        events = [await c.send("flows:echo", {"input_value": "x", "sleep": 0.02}) for _ in range(300)]
        for storm in (1, 2):
            with worker_process(server_url, flows, ledger, processes=2, concurrency=4) as worker:
                await until(lambda: len(starts(ledger)) >= 40 * storm)  # noqa: B023  waited for in this round
                for _ in range(storm):
                    worker.kill(signal.SIGTERM)
                assert worker.ended_with() == 0
            assert {x["name"] for x in await c.redis.xinfo_consumers(KEYS.stream, KEYS.group)} <= {"~parked"}
            finished = [line["event"] for line in read_ledger(ledger) if line["what"] == "end"]
            assert await c.redis.xlen("flows:echo:results") == len(finished), "what was finished is settled"
        assert len(finished) < 300, "the storms came while there was something to read"
        async with running(server_url, flows, engine=LedgerEngine(str(ledger))):
            found = await c.entries("flows:echo:results", 300)
        finished = [line["event"] for line in read_ledger(ledger) if line["what"] == "end"]
        assert sorted(result["parent_id"] for result in found) == sorted(finished) == sorted(events)
        assert await c.redis.xlen(KEYS.stream) == 0


async def test_the_probes_answer_over_http_and_by_command(server_url, flows, ledger, tmp_path):
    from tests.support.command import headrace
    from tests.support.servers import free_port

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with worker_process(server_url, flows, ledger, processes=1, probe_port=port) as worker:
        for more in ((), ("--ready",)):
            asked = headrace("health", "--url", url, *more, home=tmp_path)
            assert (asked.code, asked.out.strip()) == (0, "ok")
        assert worker.end() == 0
    gone = headrace("health", "--url", url, home=tmp_path)
    assert gone.code == 1
    assert "no worker answers" in gone.err


async def test_b2_an_exclusive_route_has_a_process_of_its_own_and_runs_one_at_a_time(server_url, flows, ledger):
    """What it blocks is nobody else's."""
    write_flow(flows, "alone", spec={"isolation": "exclusive"})
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, reading=2, processes=1, concurrency=5):
            own = [await c.send("flows:alone", {"input_value": "x", "block": 0.4}) for _ in range(3)]
            await started(ledger, own[0])
            beside = [await c.send("flows:echo", {"input_value": "y"}) for _ in range(10)]
            runs = [await c.run(KEYS, event) for event in beside]
            assert {r.status for r in runs} == {RunStatus.COMPLETED}
            for event in own:
                assert (await c.run(RouteKeys("flows:alone", "headrace"), event)).status is RunStatus.COMPLETED
            pids = {route: {line["pid"] for line in starts(ledger) if line["event"] in events}
                    for route, events in (("alone", own), ("echo", beside))}  # fmt: skip
            assert len(pids["alone"]) == 1
            assert pids["alone"] & pids["echo"] == set()
            spans = [line["what"] for line in read_ledger(ledger) if line["event"] in own]
            assert spans == ["start", "end"] * 3
            write_flow(flows, "alone", spec={"isolation": "shared"})
            async with asyncio.timeout(15):
                while pids["alone"] & {line["pid"] for line in starts(ledger)[-1:]} or len(starts(ledger)) == 13:
                    event = await c.send("flows:alone", {"input_value": "z"})
                    await c.run(RouteKeys("flows:alone", "headrace"), event)


async def test_sigterm_while_the_flows_are_being_loaded_ends_it_at_once(server_url, flows, ledger):
    with worker_process(server_url, flows, ledger, reading=0, loads=60.0) as worker:
        worker.wait_for("loading")
        assert worker.end(timeout=10) == 0


async def test_an_entry_that_kills_before_it_begins_is_dead_lettered_by_the_supervisors_word(server_url, flows, ledger):
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=2) as worker:
            first, second = worker.children()
            await c.broker.streams.ensure_group(KEYS)
            entry = await c.redis.xadd("flows:echo", {"input_value": "x", "payload": '{"sleep": 60}'})
            [line] = await started(ledger, None)
            [pending] = await c.redis.xpending_range("flows:echo", "headrace", "-", "+", 1)
            await c.redis.xclaim("flows:echo", "headrace", pending["consumer"], 0, [entry], retrycount=99, justid=True)
            os.kill(line["pid"], signal.SIGKILL)
            [letter] = await c.entries("flows:echo:dead_letter", 1)
            assert letter["dl_code"] == "worker_died"
            assert {first, second} & set(worker.children())


async def test_a_new_child_keeps_the_last_good_version_of_a_broken_file(server_url, flows, ledger):
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=1) as worker:
            (flows / "echo.json").write_text('{"data": ')
            [pid] = worker.children()
            os.kill(pid, signal.SIGKILL)
            worker.wait_for("child.reading", count=2)
            event = await c.send("flows:echo", {"input_value": "x"})
            assert (await c.run(KEYS, event)).status is RunStatus.COMPLETED


async def test_a_new_flow_reaches_every_child_though_the_supervisor_alone_watches(server_url, flows, ledger):
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=2, concurrency=1) as worker:
            write_flow(flows, "late")
            events = [await c.send("flows:late", {"input_value": "x", "sleep": 1.0}) for _ in range(2)]
            begun = [(await started(ledger, event))[0] for event in events]
            assert worker.end() == 0
    assert len({line["pid"] for line in begun}) == 2


async def test_a_flow_whose_load_never_ends_is_unready_and_holds_up_no_other(server_url, flows, ledger):
    write_flow(flows, "stuck")
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=1, start_timeout=0.5) as worker:
            worker.wait_for("flow.load_given_up")
            event = await c.send("flows:echo", {"input_value": "x"})
            assert (await c.run(KEYS, event)).status is RunStatus.COMPLETED
            route = (await c.broker.fleet.routes())["stuck"]
            assert not route.ready
            assert "took longer than 0.5 s" in route.reason
            [pid] = worker.children()
            os.kill(pid, signal.SIGKILL)
            worker.wait_for("child.reading", count=2)
            assert len([line for line in worker.lines if "flow.load_given_up" in line]) == 1


def test_a_start_that_stands_still_ends_the_worker_and_names_the_flow(server_url, flows, ledger):
    write_flow(flows, "frozen")
    with worker_process(server_url, flows, ledger, reading=0, processes=1, start_timeout=0.5) as worker:
        [line] = worker.wait_for("zygote.hangs")
        assert "loading the flow frozen" in line
        assert worker.ended_with(timeout=15) == 6


async def test_a_child_that_stands_still_in_a_load_is_killed_and_its_runs_lose_nothing(server_url, flows, ledger):
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=1, start_timeout=0.5) as worker:
            event = await c.send("flows:echo", {"input_value": "x", "sleep": 1.5})
            await started(ledger, event)
            frozen = write_flow(flows, "frozen")
            [line, *_] = worker.wait_for("child.hangs")
            assert "loading the flow frozen" in line
            frozen.unlink()
            run = await c.run(KEYS, event)
            assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)


async def test_a_zygote_that_answers_no_more_ends_the_worker_without_losing_an_event(server_url, flows, ledger):
    patch = {"runtime.worker.zygote_link.PING": 0.3}
    async with client(server_url) as c:
        with worker_process(server_url, flows, ledger, processes=1, start_timeout=1, patch=patch) as worker:
            event = await c.send("flows:echo", {"input_value": "x", "sleep": 2.0})
            await started(ledger, event)
            os.kill(worker.zygote, signal.SIGSTOP)
            worker.wait_for("zygote.hangs")
            assert worker.ended_with(timeout=15) == 6
        run = await c.run(KEYS, event)
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)
