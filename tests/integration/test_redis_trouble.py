"""What Redis and the network do to a worker: it waits quietly, is back within 5 s, and computes nothing twice."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
import structlog

from runtime.broker.client import Broker
from runtime.engine.base import ChatHistory, Emit, LoadedFlow, RunOutput, RunRequest
from runtime.settings import RedisSettings
from runtime.telemetry.quiet import Quiet
from shared_models.codec import new_event_id
from tests.chaos.proxy import Proxy
from tests.support.harness import running, worker_settings, write_flow
from tests.support.ring import FIRST, SECOND, Counting, completed, publish
from tests.support.servers import RedisServer, free_port, redis_binary, valkey_binary

HOLD = 1.5
"""Seconds that a fault lasts."""

AWAY = 30.0
"""Seconds that Redis is away in the long outage."""

LINES = 10
"""Lines of trouble that one fault may bring in a minute."""

CPU = 0.3
"""Share of a core that a worker may take while it waits, with this test beside it."""


@dataclass
class Holding(Counting):
    """Holds the runs of some events until they are let go."""

    held: dict[str, asyncio.Event] = field(default_factory=dict)
    begun: dict[str, asyncio.Event] = field(default_factory=dict)

    async def run(self, flow: LoadedFlow, request: RunRequest, history: ChatHistory, emit: Emit) -> RunOutput:
        output = await super().run(flow, request, history, emit)
        if request.event_id in self.held:
            self.begun[request.event_id].set()
            await self.held[request.event_id].wait()
        return output

    def hold(self, event_id: str) -> None:
        self.held[event_id], self.begun[event_id] = asyncio.Event(), asyncio.Event()


@dataclass
class Scene:
    """A server, the proxy between it and the worker, and an operator's connection that nothing locks out."""

    server: RedisServer
    proxy: Proxy
    operator: redis.Redis


Fault = Callable[[Scene], Any]


# --- the faults: the block is while they last -----------------------------------------------------------------------


@asynccontextmanager
async def restart_with_data(scene: Scene) -> AsyncIterator[None]:
    scene.server.kill()
    yield
    scene.server.start()


@asynccontextmanager
async def loading(scene: Scene) -> AsyncIterator[None]:
    """A restart with so much data that it takes seconds to load: Redis answers, and refuses every command."""
    scene.operator.eval("for i = 1, 2000 do redis.call('SET', 'much:' .. i, i) end", 0)
    scene.operator.bgrewriteaof()
    while scene.operator.info("persistence")["aof_rewrite_in_progress"]:
        await asyncio.sleep(0.02)
    scene.server.kill()
    # A millisecond a key, and a look at the clients after each kilobyte.
    scene.server.configure("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
    scene.server.start(wait=False)
    yield
    assert not scene.server.answers()
    while not scene.server.answers():
        await asyncio.sleep(0.02)


EVICT = """
local ended = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. 'run:*')) do
  if redis.call('HGET', key, 'status') == 'completed' then ended[key:match('[^:]*$')] = true end
end
for _, kind in ipairs({'gate:*', 'run:*', 'feed:*', 'leases', 'due', 'obits'}) do
  for _, key in ipairs(redis.call('KEYS', ARGV[1] .. kind)) do
    if not ended[key:match('[^:]*$')] then redis.call('DEL', key) end
  end
end
"""
"""At once: what a quick worker ends in between would be waited for in vain."""


@asynccontextmanager
async def evicted(scene: Scene) -> AsyncIterator[None]:
    """What a wrong maxmemory-policy may throw away: gates and records of runs under way, leases, due times."""
    scene.operator.eval(EVICT, 0, FIRST.prefix)
    yield


@asynccontextmanager
async def restart_without_data(scene: Scene) -> AsyncIterator[None]:
    scene.server.kill()
    yield
    shutil.rmtree(scene.server.folder / "appendonlydir")
    scene.server.start()


@asynccontextmanager
async def flushall(scene: Scene) -> AsyncIterator[None]:
    scene.operator.flushall()
    yield


@asynccontextmanager
async def group_destroyed(scene: Scene) -> AsyncIterator[None]:
    scene.operator.xgroup_destroy(FIRST.stream, FIRST.group)
    yield


@asynccontextmanager
async def stream_deleted(scene: Scene) -> AsyncIterator[None]:
    scene.operator.delete(FIRST.stream)
    yield


@asynccontextmanager
async def resets(scene: Scene) -> AsyncIterator[None]:
    async def storm() -> None:
        while True:
            scene.proxy.reset()
            await asyncio.sleep(0.2)

    storming = asyncio.create_task(storm())
    yield
    storming.cancel()


@asynccontextmanager
async def refused(scene: Scene) -> AsyncIterator[None]:
    scene.proxy.refuse()
    yield
    scene.proxy.heal()


@asynccontextmanager
async def black_hole(scene: Scene) -> AsyncIterator[None]:
    scene.proxy.black_hole()
    yield
    scene.proxy.heal()


@asynccontextmanager
async def black_hole_then_reset(scene: Scene) -> AsyncIterator[None]:
    scene.proxy.black_hole()
    yield
    scene.proxy.reset()
    scene.proxy.heal()


@asynccontextmanager
async def replies_lost(scene: Scene) -> AsyncIterator[None]:
    scene.proxy.deafen()
    yield
    scene.proxy.reset()
    scene.proxy.heal()


@asynccontextmanager
async def slow(scene: Scene) -> AsyncIterator[None]:
    scene.proxy.slow(0.3)
    yield
    scene.proxy.heal()


@asynccontextmanager
async def stopped(scene: Scene) -> AsyncIterator[None]:
    scene.server.pause()
    yield
    scene.server.resume()


@asynccontextmanager
async def out_of_memory(scene: Scene) -> AsyncIterator[None]:
    scene.operator.config_set("maxmemory", "1")
    yield
    scene.operator.config_set("maxmemory", "0")


@asynccontextmanager
async def read_only(scene: Scene) -> AsyncIterator[None]:
    scene.operator.replicaof("127.0.0.1", free_port())
    yield
    scene.operator.replicaof("NO", "ONE")


@asynccontextmanager
async def wrong_password(scene: Scene) -> AsyncIterator[None]:
    scene.operator.config_set("requirepass", "hunter2")
    scene.proxy.reset()
    yield
    scene.operator.config_set("requirepass", "")


@asynccontextmanager
async def no_more_clients(scene: Scene) -> AsyncIterator[None]:
    scene.operator.config_set("maxclients", 1)
    scene.proxy.reset()
    yield
    scene.operator.config_set("maxclients", 1000)


KEEP = (
    restart_with_data, loading, evicted, group_destroyed, stream_deleted, resets, refused, black_hole,
    black_hole_then_reset, replies_lost, slow, stopped, out_of_memory, read_only, wrong_password, no_more_clients,
)  # fmt: skip
"""Those after which a run that was under way can be settled."""

FORGET = (restart_without_data, flushall)
ON_REDIS = (restart_with_data, loading, evicted, flushall, group_destroyed, out_of_memory, read_only)

CASES = [("valkey", fault) for fault in (*KEEP, *FORGET)] + [("redis", fault) for fault in ON_REDIS]


@contextmanager
def log_lines() -> Iterator[list[dict[str, Any]]]:
    """What a worker's pipeline lets through, but for how its runs went."""
    lines: list[dict[str, Any]] = []

    def keep(_: Any, method: str, event: Any) -> Any:
        if method in ("warning", "error", "critical"):
            lines.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[Quiet(), keep], wrapper_class=structlog.make_filtering_bound_logger(20))
    try:
        yield lines
    finally:
        structlog.reset_defaults()


@asynccontextmanager
async def a_scene(kind: str) -> AsyncIterator[Scene]:
    binary = valkey_binary() if kind == "valkey" else redis_binary()
    with RedisServer(binary, persistent=True) as server:
        operator = redis.Redis(port=server.port, socket_timeout=10)
        proxy = await Proxy(server.port).start()
        try:
            yield Scene(server, proxy, operator)
        finally:
            operator.close()
            proxy.heal()
            await proxy.close()


@pytest.mark.parametrize(("kind", "fault"), CASES, ids=[f"{kind}-{fault.__name__}" for kind, fault in CASES])
async def test_trouble_passes(kind: str, fault: Fault, tmp_path: Path) -> None:
    write_flow(tmp_path, "first")
    engine, under_way, before, after = Holding(), new_event_id(), new_event_id(), new_event_id()
    engine.hold(under_way)
    async with a_scene(kind) as scene:
        broker = Broker.connect(scene.server.url, RedisSettings(command_timeout=2.0))
        with log_lines() as lines:
            async with running(scene.proxy.url, tmp_path, engine=engine, settings=worker_settings(lease=6.0)):
                for event in (before, under_way):
                    await publish(broker, event)
                await completed(broker, before)
                await engine.begun[under_way].wait()
                midway = [new_event_id() for _ in range(5)]
                for event in midway:
                    await publish(broker, event)
                first, spent = len(lines), time.process_time()
                async with fault(scene):
                    engine.held[under_way].set()  # its result is there while Redis is not
                    await asyncio.sleep(HOLD)
                    spent = time.process_time() - spent
                back = time.monotonic()
                await publish(broker, after)
                await completed(broker, after)
                back = time.monotonic() - back
                if fault in KEEP:
                    for event in (under_way, *midway) if fault is not stream_deleted else (under_way,):
                        await completed(broker, event)
                told = lines[first:]
        await broker.close()
    print(f"{fault.__name__}: back in {back:.2f} s, {len(told)} lines, {spent / HOLD:.0%} of a core")
    assert back < 5.0
    assert len(told) <= LINES, told
    assert spent / HOLD < CPU, told
    if fault in KEEP:
        assert engine.runs[under_way] == 1
        assert max(engine.runs.values()) == 1


async def test_d12_workers_wait_half_a_minute_for_redis_and_settle_what_they_have_computed(tmp_path: Path) -> None:
    """One worker is idle when Redis goes, one is in the midst of a run; each log keeps within its lines."""
    write_flow(tmp_path, "first")
    write_flow(tmp_path, "second")
    busy, idle, under_way = Holding(), Holding(), new_event_id()
    busy.hold(under_way)
    settings = worker_settings(lease=6.0)
    async with a_scene("valkey") as scene:
        broker = Broker.connect(scene.server.url, RedisSettings(command_timeout=2.0))
        with log_lines() as lines:
            async with (
                running(scene.proxy.url, tmp_path, engine=busy, settings=settings, only=["first"]),
                running(scene.proxy.url, tmp_path, engine=idle, settings=settings, only=["second"]),
            ):
                await publish(broker, under_way)
                await busy.begun[under_way].wait()
                first, spent = len(lines), time.process_time()
                async with restart_with_data(scene):
                    busy.held[under_way].set()
                    await asyncio.sleep(AWAY)
                    spent = time.process_time() - spent
                back = time.monotonic()
                after = new_event_id()
                await publish(broker, after)
                await publish(broker, after, SECOND)
                await completed(broker, under_way)
                await completed(broker, after)
                await completed(broker, after, SECOND)
                back = time.monotonic() - back
                told = lines[first:]
        await broker.close()
    print(f"away for {AWAY:.0f} s: back in {back:.2f} s, {len(told)} lines, {spent / AWAY:.0%} of a core")
    assert back < 5.0
    assert 0 < len(told) <= LINES, told
    assert spent / AWAY < CPU
    assert busy.runs == {under_way: 1, after: 1}
    assert idle.runs == {after: 1}
