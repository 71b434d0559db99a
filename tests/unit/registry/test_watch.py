"""The folder is watched: what is written takes effect within two seconds, whatever the file system says about it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runtime.registry import watch as watching
from runtime.registry.registry import Registry
from runtime.registry.snapshot import Snapshot
from runtime.registry.watch import watch
from runtime.worker.child import Told
from tests.unit.registry.folder import Folder, export
from tests.unit.registry.test_registry import configmap

EFFECT = 2.0
"""Seconds within which a change has to be seen."""


class Follower:
    def __init__(self, snapshots: AsyncGenerator[Snapshot, None]) -> None:
        self._snapshots = snapshots

    async def next(self, within: float = EFFECT) -> Snapshot:
        return await asyncio.wait_for(anext(self._snapshots), within)

    async def until(self, done: Any, within: float = EFFECT) -> Snapshot:
        async with asyncio.timeout(within):
            while not done(snapshot := await anext(self._snapshots)):
                pass
            return snapshot

    async def armed(self, flows: Folder) -> Snapshot:
        """The snapshot once a new file was seen: what was written before the watch was set up is for the next look."""
        waiting = asyncio.create_task(self.next(within=5))
        while not waiting.done():
            flows.flow("armed.json", export(str(time.monotonic())))
            await asyncio.wait({waiting}, timeout=0.3)
        return await waiting


@asynccontextmanager
async def following(root: Path, *, poll: float = 0.2) -> AsyncIterator[Follower]:
    async with aclosing(watch(Registry(root), poll=poll)) as snapshots:
        yield Follower(snapshots)


@pytest.fixture
def no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that never says anything, and one whose watches are used up, look the same from here."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no more watches")

    monkeypatch.setattr(watching, "awatch", refuse)


async def test_the_first_snapshot_comes_at_once(flows: Folder) -> None:
    flows.flow("a.json")
    async with following(flows.root) as follower:
        assert sorted((await follower.next()).routes) == ["a"]


@pytest.mark.parametrize("poll", [30.0, 0.1], ids=["by events", "by looking"])
async def test_adding_changing_breaking_and_removing(
    flows: Folder, poll: float, request: pytest.FixtureRequest
) -> None:
    if poll < 1:
        request.getfixturevalue("no_events")
    flows.flow("a.json")
    async with following(flows.root, poll=poll) as follower:
        await follower.next()
        first = await follower.armed(flows)
        flows.flow("sub/b.json")
        await follower.until(lambda s: "b" in s.routes)
        flows.flow("a.json", export("changed"))
        changed = await follower.until(lambda s: s.routes["a"].version != first.routes["a"].version)
        flows.write("a.json", json.dumps(export("half"))[:30])
        broken = await follower.until(lambda s: s.problems)
        assert broken.routes["a"].version == changed.routes["a"].version
        assert broken.routes["a"].stale
        (flows.root / "sub/b.json").unlink()
        assert "a" in (await follower.until(lambda s: "b" not in s.routes)).routes


async def test_a_configmap_swap_is_seen(flows: Folder) -> None:
    configmap(flows, 1, {"a.json": json.dumps(export("one"))})
    async with following(flows.root) as follower:
        first = await follower.next()
        configmap(flows, 2, {"a.json": json.dumps(export("two"))})
        seen = await follower.until(lambda s: s.routes["a"].version != first.routes["a"].version)
        assert (seen.routes["a"].flow_name, seen.problems) == ("two", ())


async def test_a_change_behind_a_link_that_leads_out_of_the_folder(flows: Folder, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.json"
    target.write_text(json.dumps(export("one")))
    (flows.root / "a.json").symlink_to(target)
    async with following(flows.root) as follower:
        await follower.next()
        target.write_text(json.dumps(export("two")))
        assert (await follower.next()).routes["a"].flow_name == "two"


async def test_a_folder_that_comes_later_and_one_that_is_replaced(tmp_path: Path) -> None:
    root = tmp_path / "flows"
    async with following(root) as follower:
        assert (await follower.next()).problems[0].code == "unreadable"
        Folder(root).flow("a.json")
        assert sorted((await follower.until(lambda s: s.routes)).routes) == ["a"]
        shutil.rmtree(root)
        Folder(root).flow("b.json")
        await follower.until(lambda s: sorted(s.routes) == ["b"])
        Folder(root).flow("c.json")
        await follower.until(lambda s: sorted(s.routes) == ["b", "c"])


async def test_an_editor_that_removes_a_file_before_it_writes_it_does_not_end_the_route(
    flows: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = flows.flow("a.json")
    flows.flow("b.json")
    registry = Registry(flows.root)
    rescan = registry.rescan

    def rescan_and_save() -> Snapshot:
        snapshot = rescan()
        if not path.exists():
            flows.flow("a.json", export("saved"))
        return snapshot

    monkeypatch.setattr(registry, "rescan", rescan_and_save)
    async with aclosing(watch(registry, poll=0.2)) as snapshots:
        follower = Follower(snapshots)
        await follower.next()
        path.unlink()
        assert (await follower.next()).routes["a"].flow_name == "saved"


async def test_one_process_watches_for_others(flows: Folder) -> None:
    """What the first one's look has found leads to a look of the second, and to nothing where nothing has changed."""
    flows.flow("a.json")
    flows.age()
    told: asyncio.Queue[None] = asyncio.Queue()
    looks = 0

    async def stirrings() -> AsyncGenerator[None, None]:
        nonlocal looks
        while True:
            await told.get()
            looks += 1
            yield

    first = watch(Registry(flows.root), poll=0.1, looked=lambda: told.put_nowait(None))
    second = watch(Registry(flows.root), stirrings=stirrings())
    async with aclosing(first), aclosing(second):
        watching, behind = Follower(first), Follower(second)
        await watching.next()
        await behind.next()
        waits = asyncio.create_task(behind.next())
        following = asyncio.create_task(watching.next())
        flows.flow("b.json")
        assert sorted((await following).routes) == ["a", "b"]
        assert sorted((await waits).routes) == ["a", "b"]
        assert looks >= 1


async def test_what_changed_while_a_child_began_is_seen(flows: Folder) -> None:
    """It has the snapshot that was made before its fork; nobody tells it of what came before it could be told."""
    flows.flow("a.json")
    registry = Registry(flows.root)
    made = registry.rescan()
    flows.flow("b.json")
    async with aclosing(watch(registry, stirrings=Told().stirrings())) as snapshots:
        follower = Follower(snapshots)
        assert await follower.next() is made
        assert sorted((await follower.next()).routes) == ["a", "b"]


async def test_what_changes_nothing_is_no_snapshot(flows: Folder) -> None:
    flows.flow("a.json")
    async with following(flows.root, poll=0.2) as follower:
        await follower.next()
        flows.flow("a.json")
        flows.write("notes.txt", "x")
        waiting = asyncio.create_task(follower.next(within=5))
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done
        flows.flow("b.json")
        assert sorted((await waiting).routes) == ["a", "b"]


async def test_cancelling_ends_it_at_once(flows: Folder) -> None:
    async def follow() -> None:
        async for _ in watch(Registry(flows.root), poll=30):
            started.set()

    started = asyncio.Event()
    task = asyncio.create_task(follow())
    await asyncio.wait_for(started.wait(), EFFECT)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 1


async def test_looking_at_an_idle_folder_costs_next_to_nothing(flows: Folder) -> None:
    for number in range(50):
        flows.flow(f"flow-{number}.json")
    flows.age()
    registry = Registry(flows.root)
    registry.rescan()
    registry.differs()
    began = time.thread_time()
    for _ in range(10):
        assert not registry.differs()
    # Ten looks, one a second: under one per cent of a core.
    assert time.thread_time() - began < 0.1


async def test_a_name_that_is_not_utf8_ends_no_watch(flows: Folder) -> None:
    flows.flow("a.json", export("a"))
    async with following(flows.root) as follower:
        await follower.armed(flows)
        Path(os.fsdecode(bytes(flows.root) + b"/\xff\xfe.json")).write_text("x")
        flows.flow("b.json", export("b"))
        await follower.until(lambda snapshot: "b" in snapshot.routes)
        flows.flow("c.json", export("c"))
        await follower.until(lambda snapshot: "c" in snapshot.routes)


def test_a_folder_that_hangs_does_not_hold_up_the_end(flows: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that is gone blocks whoever reads it; the process is told to end all the same."""
    reads, gone = threading.Event(), threading.Event()

    def hang(_: Registry) -> Snapshot:
        reads.set()
        gone.wait()
        raise OSError("the mount is back, and nobody waits")

    monkeypatch.setattr(Registry, "rescan", hang)

    async def follow() -> None:
        first = asyncio.create_task(anext(watch(Registry(flows.root))))
        while not reads.is_set():
            await asyncio.sleep(0.01)
        first.cancel()

    asyncio.run(follow())
    gone.set()
