"""How many workers an autoscaler keeps, over states of real streams: never none while anything is left to do."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from runtime.broker.client import Broker
from runtime.cli import manifests
from runtime.gateway.routes_known import keys_of
from shared_models.dead_letter import ErrorInfo
from shared_models.route import ScaleSpec
from tests.support.gateway import InProcess, gateway_in_process, route_entry
from tests.support.hand import Hand
from tests.support.keda import Reading, Scaler, down, read
from tests.support.servers import RedisServer

ROUTE = route_entry("job")
KEYS = keys_of(ROUTE)
SCALE = ScaleSpec(min=0, max=10, target=10)
TRIGGERS = [
    manifests.load_trigger(SCALE, namespace="headrace", route=ROUTE.route),
    manifests.length_trigger(SCALE, address="redis:6379", stream=ROUTE.stream),
]
SCALER = Scaler(manifests.scaled_object(manifests.Workload("i:1", ROUTE.route), SCALE, TRIGGERS)["spec"])
GROUP = {"stream": ROUTE.stream, "consumerGroup": ROUTE.group}
LAG = {"type": "redis-streams", "metadata": {**GROUP, "lagCount": "10", "activationLagCount": "0"}}
PENDING = {"type": "redis-streams", "metadata": {**GROUP, "pendingEntriesCount": "10"}}


@dataclass
class World:
    """A stream as producers and workers left it."""

    broker: Broker
    server: RedisServer
    hand: Hand | None = None

    def send(self, count: int) -> list[str]:
        return [self.server.execute("XADD", ROUTE.stream, "*", "input_value", "x") for _ in range(count)]

    async def work(self) -> Hand:
        self.hand = self.hand or await Hand.ready(self.broker, keys=KEYS)
        return self.hand

    async def take(self, count: int) -> list[Any]:
        hand = await self.work()
        return [await hand.begin(delivery, delivery.entry_id) for delivery in await hand.fetch(count)]


State = Callable[[World], Awaitable[int]]
STATES: dict[str, State] = {}
"""Each makes a state; what it returns is how many events are left: waiting, running or put off."""


def state(make: State) -> State:
    STATES[make.__name__] = make
    return make


@state
async def never_used(w: World) -> int:
    return 0


@state
async def read_and_empty(w: World) -> int:
    await w.work()
    return 0


def unread(count: int, *, read: bool) -> None:
    async def make(w: World) -> int:
        if read:
            await w.work()
        w.send(count)
        return count

    STATES[f"{count}_unread{'' if read else '_that_nobody_ever_read'}"] = make


for number in (1, 9, 10, 11, 21, 95, 400):
    unread(number, read=True)
for number in (1, 30):
    unread(number, read=False)


@state
async def one_running(w: World) -> int:
    await w.work()
    w.send(1)
    return len(await w.take(1))


@state
async def twelve_running(w: World) -> int:
    await w.work()
    w.send(12)
    return len(await w.take(12))


@state
async def all_done(w: World) -> int:
    await w.work()
    w.send(5)
    for attempt in await w.take(5):
        await (await w.work()).complete(attempt)
    return 0


@state
async def done_and_one_more(w: World) -> int:
    await all_done(w)
    return len(w.send(1))


@state
async def one_retry_later(w: World) -> int:
    await w.work()
    w.send(1)
    (attempt,) = await w.take(1)
    await (await w.work()).retry(attempt, delay=1000.0)
    return 1


@state
async def twenty_five_retries_later(w: World) -> int:
    await w.work()
    w.send(25)
    for attempt in await w.take(25):
        await (await w.work()).retry(attempt, delay=1000.0)
    return 25


@state
async def a_retry_that_is_due(w: World) -> int:
    await one_retry_later(w)
    for entry in w.server.execute("ZRANGE", KEYS.due, 0, -1):
        w.server.execute("ZADD", KEYS.due, 1, entry)
    return 1


@state
async def one_waits_for_a_person(w: World) -> int:
    await w.work()
    w.send(1)
    (attempt,) = await w.take(1)
    await (await w.work()).suspend(attempt)
    return 1


@state
async def given_back_by_a_drain(w: World) -> int:
    await w.work()
    w.send(3)
    for attempt in await w.take(3):
        await (await w.work()).release(attempt)
    return 3


@state
async def of_everything(w: World) -> int:
    await w.work()
    w.send(20)
    first, second, *_ = await w.take(6)
    await (await w.work()).retry(first, delay=1000.0)
    await (await w.work()).complete(second)
    return 19


@state
async def all_dead_lettered(w: World) -> int:
    await w.work()
    w.send(3)
    for attempt in await w.take(3):
        await (await w.work()).bury(attempt)
    return 0


@state
async def blocked(w: World) -> int:
    await w.work()
    w.send(6)
    await w.broker.streams.block(KEYS, error=ErrorInfo(code="no_key", message="set it"), probe_interval=30.0)
    return 6


@state
async def its_worker_died(w: World) -> int:
    await w.work()
    w.send(3)
    await w.take(3)
    w.server.execute("ZADD", KEYS.leases, 1, (await w.work()).name)
    return 3


@state
async def held_by_a_stranger(w: World) -> int:
    await w.work()
    w.send(1)
    w.server.execute("XREADGROUP", "GROUP", ROUTE.group, "stranger", "STREAMS", ROUTE.stream, ">")
    return 1


@state
async def one_deleted_before_it_was_read(w: World) -> int:
    await w.work()
    entries = w.send(4)
    w.server.execute("XDEL", ROUTE.stream, entries[1])
    return 3


@state
async def all_deleted_before_they_were_read(w: World) -> int:
    await w.work()
    w.server.execute("XDEL", ROUTE.stream, *w.send(4))
    return 0


@state
async def trimmed(w: World) -> int:
    await w.work()
    w.send(12)
    w.server.execute("XTRIM", ROUTE.stream, "MAXLEN", "=", 5)
    return 5


@state
async def deleted_among_the_read_and_the_unread(w: World) -> int:
    await w.work()
    entries = w.send(8)
    for attempt in await w.take(3):
        await (await w.work()).complete(attempt)
    w.server.execute("XDEL", ROUTE.stream, entries[5])
    return 4


@state
async def the_group_was_set_by_hand(w: World) -> int:
    entries = w.send(6)
    w.server.execute("XGROUP", "CREATE", ROUTE.stream, ROUTE.group, entries[1])
    return 4


@state
async def the_group_is_gone_and_made_anew(w: World) -> int:
    await w.work()
    w.send(7)
    await w.take(2)
    w.server.execute("XGROUP", "DESTROY", ROUTE.stream, ROUTE.group)
    await w.broker.streams.ensure_group(KEYS)
    return 7


@pytest.fixture
async def gate(valkey_server: RedisServer):
    valkey_server.execute("FLUSHALL")
    async with gateway_in_process(valkey_server.url, ROUTE) as made:
        yield made


@dataclass(frozen=True)
class Recorded:
    """What the two triggers and those of a plain KEDA set-up read in a state, and what is really left to do."""

    left: int
    load: int
    readings: list[Reading]
    lag: Reading
    pending: Reading

    @property
    def right(self) -> int:
        """How many workers there should be."""
        return min(SCALE.max, math.ceil(self.left / SCALE.target))


async def record(name: str, gate: InProcess, server: RedisServer) -> Recorded:
    left = await STATES[name](World(gate.gateway.broker, server))
    answer = await gate.http.get("/v1/routes/job/load")
    assert answer.status_code == 200, answer.text
    load = answer.json()["load"]

    def asked(url: str) -> int:
        assert url.endswith(answer.request.url.path)
        return int(load)

    ours = [read(trigger, server.execute, asked) for trigger in TRIGGERS]
    lag, pending = (read(trigger, server.execute, asked) for trigger in (LAG, PENDING))
    return Recorded(left, load, ours, lag, pending)


def away(readings: list[Reading], *which: int) -> list[Reading]:
    return [Reading(None, r.target) if place in which else r for place, r in enumerate(readings)]


@pytest.mark.parametrize("name", STATES)
async def test_the_decision_is_right(name: str, gate: InProcess, valkey_server: RedisServer):
    found = await record(name, gate, valkey_server)
    assert found.load == found.left
    assert found.readings[1].value >= found.left  # what is settled is deleted, all else is there
    for now in (0, 1, 3, 10):
        settled = SCALER.settle(found.readings, now)
        # Within the autoscaler's tolerance, what runs may stay.
        assert settled == found.right or (abs(found.left / (now * SCALE.target) - 1) <= 0.1 and settled == now)
        assert (settled == 0) == (found.left == 0)
        without_gateway = SCALER.settle(away(found.readings, 0), now)
        without_redis = SCALER.settle(away(found.readings, 0, 1), now)
        assert without_gateway >= max(now, min(1, found.left), 0)
        assert without_redis == max(1, now)


def test_there_are_thirty_states():
    assert len(STATES) >= 30


@pytest.mark.parametrize("name", ["one_deleted_before_it_was_read", "the_group_was_set_by_hand"])
async def test_t47_an_unknown_lag_is_not_nothing_to_do(name: str, gate: InProcess, valkey_server: RedisServer):
    found = await record(name, gate, valkey_server)
    assert found.left > 0
    # Redis does not know the lag, and nobody holds anything: by these two the workers would go, or never come.
    assert (found.lag.value, found.pending.value) == (-1, 0)
    assert SCALER.settle([found.lag, found.pending], 1) == SCALER.settle([found.lag, found.pending], 0) == 0
    assert SCALER.settle(found.readings, 0) == SCALER.settle(found.readings, 1) == 1
    assert SCALER.settle([found.lag, found.pending, *found.readings], 0) == 1


async def test_t47_a_load_that_is_not_known_takes_nobody_away(gate: InProcess, valkey_server: RedisServer):
    """The gateway answers 503, which is an error to KEDA and no number."""
    unknown = [Reading(None, 10.0), Reading(0.0, 10.0)]
    assert [SCALER.settle(unknown, now) for now in (0, 1, 7)] == [1, 1, 7]


async def test_what_only_another_group_needs_keeps_a_worker_where_the_length_counts(gate, valkey_server):
    valkey_server.execute("XGROUP", "CREATE", ROUTE.stream, "theirs", 0, "MKSTREAM")
    await all_done(World(gate.gateway.broker, valkey_server))
    load = (await gate.http.get("/v1/routes/job/load")).json()["load"]
    readings = [read(trigger, valkey_server.execute, lambda _: load) for trigger in TRIGGERS]
    assert [reading.value for reading in readings] == [0, 5]
    assert SCALER.settle(readings[:1], 3) == 0
    assert SCALER.settle(readings, 3) == 1


def test_workers_go_slowly():
    """A lull shorter than the window takes nobody away; after it, half at a time."""
    history = [(float(at), 8 if at < 100 else 1) for at in range(0, 1000, 15)]
    assert down(SCALER.spec, [h for h in history if h[0] <= 380], 8, at=380) == 8
    assert down(SCALER.spec, [h for h in history if h[0] <= 420], 8, at=420) == 4
    assert down(SCALER.spec, history, 4, at=480) == 2


def test_a_least_is_kept():
    kept = Scaler({**SCALER.spec, "minReplicaCount": 2, "fallback": {**SCALER.spec["fallback"], "replicas": 2}})
    for now in (0, 2, 5):
        assert kept.settle([Reading(0.0, 10.0)], now) == 2
    assert kept.settle([Reading(None, 10.0)], 0) == 2
