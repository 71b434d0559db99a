"""The fleet's directory."""

from __future__ import annotations

from dataclasses import replace

from runtime.broker.client import Broker
from runtime.broker.fleet import RouteEntry, WorkerReport
from runtime.broker.keys import FLEET_SEEN, FLEET_WORKERS
from tests.support.hand import raw


async def test_workers_come_and_go(broker: Broker) -> None:
    report = WorkerReport(name="w1", host="h", pid=7, concurrency=3, running=2, routes=("a", "b"), state="draining")
    await broker.fleet.report(report, ttl=30)
    await broker.fleet.report(WorkerReport(name="w0"), ttl=30)
    found = await broker.fleet.workers()
    assert [w.name for w in found] == ["w0", "w1"]
    assert found[1].seen_at > 0
    assert (found[1].routes, found[1].state, found[1].pid) == (("a", "b"), "draining", 7)
    await broker.fleet.withdraw("w0")
    await raw(broker, "ZADD", FLEET_SEEN, 1, "w1")
    assert await broker.fleet.workers() == []
    assert await raw(broker, "EXISTS", FLEET_WORKERS, FLEET_SEEN) == 0


async def test_routes(broker: Broker) -> None:
    entries = [RouteEntry(name, f"flows:{name}", "headrace", "d", "r", "v", False, "no key") for name in ("b", "a")]
    await broker.fleet.register(entries)
    await broker.fleet.register([])
    found = await broker.fleet.routes()
    assert list(found) == ["a", "b"]
    assert found["b"] == entries[0]
    assert len({*entries, *found.values()}) == 2  # commands keep them in sets
    await broker.fleet.forget("b")
    assert list(await broker.fleet.routes()) == ["a"]


async def test_routes_are_told_again_as_they_are_by_then(broker: Broker) -> None:
    same, changed = (RouteEntry(name, f"flows:{name}", "headrace", "d", "r") for name in ("same", "changed"))
    await broker.fleet.register([same, changed])
    await raw(broker, "FLUSHALL")
    now = replace(changed, ready=False, reason="no key")
    await broker.fleet.register([same, now])
    assert await broker.fleet.routes() == {"changed": now, "same": same}
    await broker.fleet.register([changed])
    assert await broker.fleet.routes() == {"changed": changed, "same": same}


async def test_reports_of_other_versions(broker: Broker) -> None:
    await raw(broker, "HSET", FLEET_WORKERS, "new", '{"name": "new", "gadgets": 4}', "odd", "{", "odder", "[]")
    assert [w.name for w in await broker.fleet.workers()] == ["new"]
