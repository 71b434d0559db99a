"""The route book, with an engine and a broker that only note what they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from runtime.broker.keys import RouteKeys
from runtime.engine.echo import EchoFlow
from runtime.errors import BrokerUnavailable, FlowUnready
from runtime.registry.snapshot import Route, Snapshot
from runtime.worker.lanes import Lanes
from runtime.worker.route_book import RouteBook, flow_source
from shared_models.route import RouteSpec


class Engine:
    """Loads anything, but for a parent whose child is not there."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.siblings: set[str] = set()

    def set_siblings(self, sources: Any) -> None:
        self.siblings = set(sources)

    async def load(self, source: Any) -> EchoFlow:
        self.loaded.append(source.route)
        parent = source.route == "parent"
        if parent and "child" not in self.siblings:
            raise FlowUnready(needs=("the child is missing",))
        return EchoFlow(source.version, runs_others=parent)


class Leases:
    """A broker's, of which nothing else is asked here."""

    def __init__(self) -> None:
        self.left: list[RouteKeys] = []
        self.away = False

    @property
    def leases(self) -> Leases:
        return self

    async def leave(self, keys: RouteKeys, *, worker: str, ends: bool) -> None:
        assert (worker, ends) == ("w", False)
        if self.away:
            raise BrokerUnavailable
        self.left.append(keys)


class Lease:
    """The worker's own."""

    def __init__(self) -> None:
        self.watched: list[RouteKeys] = []

    async def watch(self, keys: Sequence[RouteKeys]) -> bool:
        self.watched = list(keys)
        return True


@dataclass
class World:
    engine: Engine
    lanes: Lanes
    book: RouteBook
    leases: Leases


def world(**preloaded: EchoFlow) -> World:
    engine, lanes, leases = Engine(), Lanes(), Leases()
    known = {name: (flow_source(route(name)), flow) for name, flow in preloaded.items()}
    book = RouteBook(
        leases,
        engine,
        lanes,
        takes=lambda route: True,
        changed=lambda: None,
        preloaded=known,
        worker="w",
    )
    return World(engine, lanes, book, leases)


def route(name: str, version: str = "v1") -> Route:
    path = Path(f"/flows/{name}.json")
    return Route(name=name, path=path, spec=RouteSpec(), spec_version="", export={"name": name}, version=version)


def snapshot(*routes: Route) -> Snapshot:
    return Snapshot(routes={r.name: r for r in routes})


async def test_what_was_loaded_before_the_fork_is_not_loaded_again() -> None:
    w = world(other=EchoFlow("v1"))
    await w.book.apply(snapshot(route("other")))
    assert w.engine.loaded == []
    await w.book.apply(snapshot(route("other", "v2")))
    assert w.engine.loaded == ["other"]


async def test_a_parent_is_loaded_with_the_children_that_are_there_now() -> None:
    w = world(parent=EchoFlow("v1", runs_others=True), child=EchoFlow("v1"))
    await w.book.apply(snapshot(route("parent")))
    lane = w.lanes.get("parent")
    assert lane is not None
    assert lane.active is None
    assert lane.needs == ("the child is missing",)
    await w.book.apply(snapshot(route("parent"), route("child")))
    assert lane.active is not None
    await w.book.apply(snapshot(route("parent"), route("child", "v2")))
    assert w.engine.loaded == ["parent", "parent", "parent", "child"]
    await w.book.apply(snapshot(route("parent")))
    assert lane.active is None


async def test_a_stored_file_that_changes_is_a_reason_to_load() -> None:
    w = world()
    first = route("other")
    await w.book.apply(snapshot(first))
    await w.book.apply(snapshot(replace(first, files_version="f2")))
    assert w.engine.loaded == ["other", "other"]


async def test_a_spec_that_changes_alone_loads_nothing() -> None:
    w = world()
    first = route("other")
    await w.book.apply(snapshot(first))
    changed = replace(first, spec=RouteSpec(timeout=5.0))
    await w.book.apply(snapshot(changed))
    lane = w.lanes.get("other")
    assert lane is not None
    assert lane.active is not None
    assert lane.active.route is changed
    assert w.engine.loaded == ["other"]


async def test_a_closed_lane_is_kept_until_its_group_was_left() -> None:
    """Forgotten before, its consumer and its lease would stay behind with nobody to end them."""
    w, lease = world(), Lease()
    await w.book.apply(snapshot(route("gone"), route("stays")))
    for lane in w.lanes:
        lane.listening = True
    await w.book.apply(snapshot(route("stays")))
    w.leases.away = True
    with pytest.raises(BrokerUnavailable):
        await w.book.part(lease)
    assert [lane.name for lane in w.lanes] == ["stays", "gone"]
    assert lease.watched == [RouteKeys("flows:stays", "headrace")]
    w.leases.away = False
    await w.book.part(lease)
    assert w.leases.left == [RouteKeys("flows:gone", "headrace")]
    assert [lane.name for lane in w.lanes] == ["stays"]


async def test_every_lane_knows_which_streams_are_read() -> None:
    w = world()
    await w.book.apply(Snapshot(routes={"a": route("a")}, disabled={"b": route("b")}))
    (lane,) = w.lanes
    assert lane.read == {"flows:a", "flows:b"}
