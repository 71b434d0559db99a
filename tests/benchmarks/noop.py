"""The stream runtime alone: the echo engine beside a taskiq worker on its Redis stream broker, one process each.

Both find a deep stream and have 40 events in hand. Headrace also gates, fences, records and publishes. How long an
event takes from XADD to the start of its run is read from the server's own clock: MONITOR stamps every command.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import redis
import redis.asyncio as redis_client

from tests.benchmarks.figures import Row, Sample, Value, cpu_of, quantile, quiet
from tests.benchmarks.stack import Stack, server_pid, stack, valkey
from tests.benchmarks.taskiq_peer import install, taskiq
from tests.support.harness import ECHO_FLOW

STREAM = "flows:echo"
SILENT = {"HEADRACE_LOG__LEVEL": "warning"}
"""Says nothing of an event that goes well, as the peer does where its log level is ERROR; its own is INFO."""
SLOTS = "40"
FILL = """
local payload = ARGV[3]
for i = ARGV[1], ARGV[1] + ARGV[2] - 1 do
  redis.call('XADD', KEYS[1], '*', 'input_value', payload, 'event_id', 'bench-' .. i)
end
"""
"""Events for Headrace, made by the server: from number ARGV[1], ARGV[2] of them, with the input ARGV[3]."""


ROUNDS = 3
"""Each of those that are compared is measured so often, in turn: the machine may be another's for half a minute."""


async def measure(*, quick: bool = False) -> list[Row]:
    """Throughput with 40 in flight, and the time to the start of a run."""
    seconds = 2.0 if quick else 5.0
    found: dict[str, list[Sample]] = {}
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        flows = echo_flows(home / "flows")
        binaries = install(home / "environment")
        ways: dict[str, Callable[[], Sample]] = {
            "Headrace": lambda: _headrace(flows, {}, seconds=seconds),
            "Headrace, silent": lambda: _headrace(flows, SILENT, seconds=seconds),
        }
        if binaries is not None:
            for who, asked in PEERS.items():
                ways[who] = partial(_taskiq, binaries, home / who.replace(" ", "-"), seconds=seconds, **asked)
        order = list(ways)
        for _ in range(ROUNDS):
            for who in order:
                loads.append(quiet())
                found.setdefault(who, []).append(ways[who]())
            order.append(order.pop(0))  # so that none always comes right after another
        with stack(flows, "--engine", "echo", "--concurrency", SLOTS) as running:
            starts = [
                await _starts(running.url, "idle", every=0.25, events=20 if quick else 60, target="<= 3"),
                await _starts(running.url, "50 events/s", every=0.02, events=200 if quick else 1000, target="<= 15"),
            ]
    return [*_rows(found, max(loads)), *starts]


PEERS = {
    "taskiq": {"results": False, "logs": False},
    "taskiq that logs": {"results": False, "logs": True},
    "taskiq that keeps results": {"results": True, "logs": False},
}
"""What the peer does beside running its tasks."""


def _rows(found: dict[str, list[Sample]], load: float) -> list[Row]:
    """The middle one of each, and the middle ratio of those that were measured beside each other."""
    middle = {who: sorted(samples, key=lambda sample: sample.rate)[ROUNDS // 2] for who, samples in found.items()}
    rows = [Row(f"no-op, 40 in flight: {who}", sample.values(who), load=load) for who, sample in middle.items()]
    for mine in ("Headrace", "Headrace, silent"):
        for peer in (who for who in found if who.startswith("taskiq")):
            pairs = list(zip(found[mine], found[peer], strict=True))
            target = ">= 1" if (mine, peer) == ("Headrace", "taskiq") else ""
            what = f"no-op, 40 in flight: {mine} to {peer}"
            rows.append(Row(f"{what}, events/s", {}, quantile([a.rate / b.rate for a, b in pairs], 0.5), target, load))
            rows.append(Row(f"{what}, CPU", {}, quantile([a.cpu_ms / b.cpu_ms for a, b in pairs], 0.5), load=load))
    return rows


def _headrace(flows: Path, environment: dict[str, str], *, seconds: float) -> Sample:
    with (
        stack(flows, "--engine", "echo", "--concurrency", SLOTS, environment=environment) as running,
        redis.Redis.from_url(running.url) as client,
    ):
        return steady(running, client, 1000, seconds)


def echo_flows(folder: Path, names: tuple[str, ...] = ("echo",)) -> Path:
    """A folder of flows for the echo engine."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}.json").write_text(json.dumps(ECHO_FLOW))
    return folder


_filled = 0


def fill(client: redis.Redis, count: int, payload: str) -> int:
    """So many more events waiting, each with an id of its own. Returns how many commands that took."""
    global _filled  # noqa: PLW0603  ids must differ over all measurements of a server
    script, step = client.register_script(FILL), max(1, min(5000, 8_000_000 // len(payload)))
    for begin in range(0, count, step):
        script(keys=[STREAM], args=[_filled, min(step, count - begin), payload])
        _filled += min(step, count - begin)
    return len(range(0, count, step))


def results(client: redis.Redis) -> int:
    """How many events have been answered."""
    try:
        return int(client.xinfo_stream(f"{STREAM}:results")["entries-added"])
    except redis.ResponseError:
        return 0


def busy(
    client: redis.Redis,
    workers: list[psutil.Process],
    server: int,
    done: Callable[[], int],
    *,
    seconds: float,
    keep: Callable[[], int] | None = None,
) -> Sample:
    """What a worker does in ``seconds`` while enough waits for it, after one second to warm up.

    ``keep`` is called 20 times a second, to keep enough waiting; it tells how many commands it has sent. The server's
    CPU and the workers' round trips per event stand beside the workers' CPU.
    """
    marks, own = [], 0
    for stretch in (1.0, seconds):
        until = time.perf_counter() + stretch
        while (left := until - time.perf_counter()) > 0:
            own += keep() if keep is not None else 0
            time.sleep(min(0.05, left))
        ended, reads = done(), int(client.info("stats")["total_reads_processed"])
        marks.append((ended, time.perf_counter(), cpu_of(workers), cpu_of([psutil.Process(server)]), reads - own))
        own += 2  # the two questions just asked
    events, wall, cpu, server_cpu, reads = (after - before for before, after in zip(*marks, strict=True))
    assert events > 0, "nothing ended: is anything waiting?"
    more: dict[str, Value] = {"Valkey CPU ms": server_cpu / events * 1000, "round trips": reads / events}
    return Sample(int(events), wall, cpu, more=more)


def steady(running: Stack, client: redis.Redis, depth: int, seconds: float, payload: str = "hello") -> Sample:
    """The worker's work while about ``depth`` entries stand in the stream."""

    def keep() -> int:
        lacking = depth - client.xlen(STREAM)
        return 1 + (fill(client, lacking, payload) if lacking > 0 else 0)

    keep()
    return busy(client, running.family, running.valkey, lambda: results(client), seconds=seconds, keep=keep)


def empty(client: redis.Redis) -> None:
    """Wait until nothing waits any more."""
    while client.xlen(STREAM):
        time.sleep(0.05)


def _taskiq(binaries: Path, home: Path, *, seconds: float, results: bool, logs: bool) -> Sample:
    with ExitStack() as scope:
        url = scope.enter_context(valkey())
        client = scope.enter_context(redis.Redis.from_url(url))
        peer = scope.enter_context(taskiq(binaries, url, home, results=results, logs=logs))
        for start in range(0, int((1 + seconds) * 6000), 1000):
            pipe = client.pipeline(transaction=False)
            for number in range(start, start + 1000):
                pipe.xadd(peer.stream, {"data": peer.message(number)})
            pipe.execute()
        sample = busy(client, peer.family, server_pid(url), lambda: peer.done(client), seconds=seconds)
        assert peer.done(client) < client.xlen(peer.stream), "it has run dry"
        return sample


async def _starts(url: str, how: str, *, every: float, events: int, target: str) -> Row:
    """From XADD to the gate's permission to run, in ms, on the server's clock. The ratio is to one millisecond."""
    load = quiet()
    sent, begun = dict[str, float](), dict[str, float]()
    async with redis_client.Redis.from_url(url, decode_responses=True) as client, client.monitor() as monitor:
        watch = asyncio.create_task(_watch(monitor, sent, begun, events))
        for number in range(events):
            await client.xadd(STREAM, {"input_value": "hello", "event_id": f"start-{how}-{number}."})
            await asyncio.sleep(every)
        await asyncio.wait_for(watch, 30)
    waits = [(begun[event] - at) * 1000 for event, at in sent.items()]
    p50, p99 = quantile(waits, 0.5), quantile(waits, 0.99)
    ratio = p50 if how == "idle" else p99
    what = "p50" if how == "idle" else "p99"
    return Row(f"XADD to start, {how}: {what}, to 1 ms", {"p50 ms": p50, "p99 ms": p99}, ratio, target, load)


async def _watch(
    monitor: redis_client.client.Monitor, sent: dict[str, float], begun: dict[str, float], events: int
) -> None:
    """Note when each event is added, and when the feed of its run says that it has started."""
    async for command in monitor.listen():
        words = command["command"]
        if words.startswith(f"XADD {STREAM} "):
            sent[_event(words)] = command["time"]
        elif words.startswith("XADD ") and " type started " in words:
            begun[_event(words)] = command["time"]
            if len(begun) == events:
                return


def _event(words: str) -> str:
    place = words.index("start-")
    return words[place : words.index(".", place)]
