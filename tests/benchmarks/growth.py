"""What an event costs as things grow: events that wait, routes, parked entries, payloads, processes.

All but the last on the echo engine, so that nothing hides what the stream runtime adds.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis

from runtime.broker.keys import RouteKeys
from tests.benchmarks.figures import Row, Sample, load, quiet, told
from tests.benchmarks.flows import write_flows
from tests.benchmarks.idle import idling
from tests.benchmarks.noop import STREAM, echo_flows, empty, steady
from tests.benchmarks.stack import Stack, stack
from tests.benchmarks.stub import stub

PARK = """
for i = 1, ARGV[1] do
  local id = redis.call('XADD', KEYS[1], '*', 'input_value', 'later')
  redis.call('XREADGROUP', 'GROUP', ARGV[2], '~parked', 'COUNT', 1, 'STREAMS', KEYS[1], '>')
  redis.call('ZADD', KEYS[2], ARGV[3], id)
end
"""
"""Parks ARGV[1] events until the time ARGV[3] (ms), as retries of failed events are. Nothing else may be waiting."""

FAR = 4_000_000_000_000
"""A time in ms that no measurement will see."""


async def measure(*, quick: bool = False) -> list[Row]:
    """Each kind of growth."""
    seconds = 2.0 if quick else 6.0
    rows = list[Row]()
    for found in (
        _waiting(seconds, deep=100_000 if quick else 1_000_000),
        _pending(seconds, many=10_000 if quick else 100_000),
    ):
        rows += map(told, found)
    async for row in _payload(seconds):
        rows.append(told(row))
    for routes in (1, 500):
        target = "<= 0.02" if routes > 1 else ""
        rows.append(told(await idling(routes, seconds=5.0 if quick else 15.0, target=target)))
    return [*rows, *map(told, await _processes(seconds))]


def _waiting(seconds: float, *, deep: int) -> Iterator[Row]:
    with _echo() as (running, client):
        few, many = steady(running, client, 1000, seconds), steady(running, client, deep, seconds)
    values = {**few.values("1,000 waiting"), **many.values(f"{deep:,} waiting")}
    yield Row(f"{deep:,} waiting: events/s, to 1,000", values, many.rate / few.rate, ">= 0.9", load())


def _pending(seconds: float, *, many: int) -> Iterator[Row]:
    keys = RouteKeys(STREAM, "headrace")
    with _echo() as (running, client):
        park = client.register_script(PARK)
        none = steady(running, client, 1000, seconds)
        empty(client)
        for _ in range(0, many, 1000):
            park(keys=[STREAM, keys.due], args=[1000, keys.group, FAR])
        parked = steady(running, client, many + 1000, seconds)
    values = {**none.values("none parked"), **parked.values(f"{many:,} parked")}
    yield Row(f"{many:,} pending: events/s, to none", values, parked.rate / none.rate, load=load())


async def _payload(seconds: float) -> AsyncIterator[Row]:
    """A closed loop: of large events a whole round may take longer than a look at a deep stream would."""
    small: Sample | None = None
    with _echo() as (running, _):
        for size in (1_000, 10_000, 100_000, 1_000_000):
            sample = await running.measure("echo", in_flight=10, seconds=seconds, payload="x" * size)
            small = small or sample
            values = sample.values(f"{size:,} bytes")
            yield Row(f"payload of {size:,} bytes: CPU, to 1,000", values, sample.cpu_ms / small.cpu_ms, load=load())


async def _processes(seconds: float) -> list[Row]:
    """Basic prompting with an instant model. The stub, Valkey and the sender share the machine's cores with them.

    Long, since at its end one of two processes has nothing to do any more.
    """
    found = list[Sample]()
    for processes in (1, 2):
        with tempfile.TemporaryDirectory() as home, stub() as model:
            flows = write_flows(Path(home) / "flows", model, ("basic",))
            with stack(flows, "--processes", str(processes), "--concurrency", "20") as running:
                quiet()
                found.append(await running.measure("basic", in_flight=40, seconds=max(8.0, 4 * seconds)))
    one, two = found
    values = {**one.values("1 process"), **two.values("2 processes")}
    return [Row("basic, 2 processes: events/s, to 1", values, two.rate / one.rate, ">= 1.8", load())]


@contextmanager
def _echo() -> Iterator[tuple[Stack, redis.Redis]]:
    quiet()
    with ExitStack() as scope:
        flows = echo_flows(Path(scope.enter_context(tempfile.TemporaryDirectory())) / "flows")
        running = scope.enter_context(stack(flows, "--engine", "echo", "--concurrency", "40"))
        yield running, scope.enter_context(redis.Redis.from_url(running.url))
