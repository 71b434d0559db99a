"""Flows that change while events flow: the new version soon, the old one until then, nothing lost, nothing failed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from runtime.broker.keys import RouteKeys
from shared_models.result import RunRecord, RunStatus
from tests.support import command, flows, rendezvous
from tests.support.flows import Field
from tests.support.harness import Client, client, running, worker_settings
from tests.support.real import REAL, put, runs, text, until
from tests.support.rendezvous import Rendezvous

pytestmark = REAL

SOON = 2.0
"""Seconds within which a change takes effect."""


def version(n: int) -> flows.Flow:
    """A flow that says which one it is."""
    flow = flows.through(f"def work(self) -> Message:\n    return Message(text='v{n}: ' + self.text)")
    flow.name = "Versions"
    return flow


def sha(folder: Path, name: str) -> str:
    return hashlib.sha256((folder / f"{name}.json").read_bytes()).hexdigest()


class Stream:
    """Events that flow all the time."""

    def __init__(self, c: Client, keys: RouteKeys) -> None:
        self._c = c
        self._keys = keys
        self.events: list[str] = []
        self._stop = asyncio.Event()

    async def run(self) -> None:
        while not self._stop.is_set():
            self.events.append(await self._c.send(self._keys.stream, {"input_value": str(len(self.events))}))
            await asyncio.wait([asyncio.ensure_future(self._stop.wait())], timeout=0.05)

    async def answered_by(self, n: int) -> dict[str, Any]:
        """The first result of version ``n``, as soon as it is there."""
        last = "0-0"
        async with asyncio.timeout(20):
            while True:
                found = await self._c.redis.xread({f"{self._keys.stream}:results": last}, block=5000)
                for last, fields in found[0][1] if found else []:  # noqa: B007  the last id is read after the loop
                    if json.loads(fields["payload"])["input_value"].startswith(f"v{n}: "):
                        return fields

    def stop(self) -> None:
        self._stop.set()


@asynccontextmanager
async def flowing(c: Client, keys: RouteKeys) -> AsyncIterator[Stream]:
    """Events at a steady pace until the block ends."""
    stream = Stream(c, keys)
    task = asyncio.create_task(stream.run())
    try:
        yield stream
    finally:
        stream.stop()
        await task


async def reason(c: Client, route: str) -> str:
    """Wait until the fleet knows something against a route; what."""

    async def look() -> str:
        entry = (await c.broker.fleet.routes()).get(route)
        return entry.reason if entry is not None else ""

    found: str = await until(look)
    return found


async def test_an_edit_under_load_takes_effect_and_nothing_is_lost(server_url, engine, tmp_path):
    keys = put(tmp_path, "versions", version(1))
    shas = [sha(tmp_path, "versions")]
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine), flowing(c, keys) as stream:
        await stream.answered_by(1)
        took = []
        for n in (2, 3, 4):
            began = time.monotonic()
            put(tmp_path, "versions", version(n))
            shas.append(sha(tmp_path, "versions"))
            await stream.answered_by(n)
            took.append(time.monotonic() - began)
        assert min(took) < SOON  # the machine may be busy at one of them
        stream.stop()
        done = await runs(c, keys, stream.events)
        assert {(run.status, run.attempts) for run in done} == {(RunStatus.COMPLETED, 1)}
        assert [version_said(run) for run in done] == [shas.index(run.version or "") + 1 for run in done]
        assert {run.version for run in done} == set(shas)
        # In the order of their coming, versions only go up: nothing ran on an old one once the new one was there.
        started = sorted(done, key=lambda run: run.started_at or 0)
        assert [version_said(run) for run in started] == sorted(version_said(run) for run in started)


def version_said(run: RunRecord) -> int:
    assert run.result is not None and run.result.text is not None
    return int(run.result.text[1])


async def test_a_run_ends_on_the_version_it_began_with(server_url, engine, tmp_path):
    async with Rendezvous() as place:
        keys = put(tmp_path, "held", rendezvous.flow(place.place))
        first = sha(tmp_path, "held")
        async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
            old = await c.send(keys.stream, {"input_value": "old"})
            meeting = await place.met()
            changed = rendezvous.flow(place.place, name="Held otherwise")
            put(tmp_path, "held", changed)
            await engine.loaded("held", times=2)
            new = await c.send(keys.stream, {"input_value": "new"})
            await (await place.met()).say()
            assert (await c.run(keys, new)).version == sha(tmp_path, "held") != first
            await meeting.say()
            run = await c.run(keys, old)
            assert (run.status, run.version) == (RunStatus.COMPLETED, first)


async def test_half_a_file_leaves_the_old_version_running_and_is_told(server_url, engine, tmp_path):
    keys = put(tmp_path, "versions", version(1))
    good = sha(tmp_path, "versions")
    file = tmp_path / "versions.json"
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine), flowing(c, keys) as stream:
        await stream.answered_by(1)
        whole = json.dumps(version(2).export())
        file.write_text(whole[: len(whole) // 2])
        why = await reason(c, "versions")
        assert "not JSON" in why
        event = await c.send(keys.stream, {"input_value": "meanwhile"})
        run = await c.run(keys, event)
        assert (run.status, run.version) == (RunStatus.COMPLETED, good)
        assert (await c.broker.fleet.routes())["versions"].ready
        shown = await asyncio.to_thread(
            command.headrace, "flows", "list", "--json", "--flows", str(tmp_path), home=tmp_path, REDIS_URL=server_url
        )
        (listed,) = json.loads(shown.out)
        assert "not JSON" in listed["reason"]
        assert listed["ready"]
        file.write_text(whole)
        await stream.answered_by(2)

        async def mended() -> bool:
            entry = (await c.broker.fleet.routes())["versions"]
            return not entry.reason and entry.version == sha(tmp_path, "versions")

        await until(mended)
        stream.stop()
        done = await runs(c, keys, stream.events)
        assert {(run.status, run.attempts) for run in done} == {(RunStatus.COMPLETED, 1)}


async def test_a_component_that_does_not_compile_leaves_the_old_version_running(server_url, engine, tmp_path):
    keys = put(tmp_path, "versions", version(1))
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        assert await text(c, keys, {"input_value": "x"}) == "v1: x"
        broken = version(2)
        broken.template("Custom-it")["code"]["value"] += "\n    def broken(:\n"
        put(tmp_path, "versions", broken)
        why = await reason(c, "versions")
        assert "syntax error" in why
        assert await text(c, keys, {"input_value": "y"}) == "v1: y"
        put(tmp_path, "versions", version(3))
        await engine.loaded("versions", times=3)
        assert await text(c, keys, {"input_value": "z"}) == "v3: z"


async def test_a_changed_route_spec_takes_effect_without_a_reload(server_url, engine, tmp_path):
    keys = put(tmp_path, "versions", version(1))
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        assert await text(c, keys, {"input_value": "x"}) == "v1: x"
        put(tmp_path, "versions", version(1), results={"stream": "elsewhere"}, input="payload.other")

        async def moved() -> bool:
            return (await c.broker.fleet.routes())["versions"].results == "elsewhere"

        await until(moved)
        assert await text(c, keys, {"other": "y"}) == "v1: y"
        assert len(await c.entries("elsewhere", 1)) == 1
        assert engine.loads("versions") == 1


async def test_a_stored_file_that_comes_and_goes_decides_whether_its_flow_is_ready(server_url, engine, tmp_path):
    flow = flows.Flow("Reads its notes")
    file = flow.add("File", "File-it", path=Field(value=["f/notes.txt"], file_path=["f/notes.txt"]))
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(file, "message", out, "input_value")
    keys = put(tmp_path, "reader", flow)
    notes = tmp_path / "reader.files" / "notes.txt"
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine) as worker:
        [need] = worker.report.unready["reader"]
        assert "notes.txt" in need
        waits = await c.send(keys.stream, {"any": 1})
        notes.parent.mkdir()
        notes.write_text("first")
        run = await c.run(keys, waits)
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)
        assert "first" in await text(c, keys, {"any": 2})
        notes.write_text("second, and longer")
        await engine.loaded("reader", times=3)
        assert "second" in await text(c, keys, {"any": 3})
        notes.unlink()
        assert "notes.txt" in await reason(c, "reader")
        waits = await c.send(keys.stream, {"any": 4})
        notes.write_text("third")
        run = await c.run(keys, waits)
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)


async def test_a_removed_file_stops_the_reading_and_a_returned_one_goes_on(server_url, engine, tmp_path):
    keys = put(tmp_path, "leaves", version(1))
    other = put(tmp_path, "stays", version(1))
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine) as worker:
        assert await text(c, keys, {"input_value": "x"}) == "v1: x"
        (tmp_path / "leaves.json").unlink()

        async def gone() -> bool:
            (report,) = await c.broker.fleet.workers()
            return report.routes == ("stays",)

        await until(gone)

        # It has left the group it read, as it would at its end.
        async def left() -> bool:
            names = {consumer["name"] for consumer in await c.redis.xinfo_consumers(keys.stream, keys.group)}
            return worker.report.worker not in names

        await until(left)
        waits = [await c.send(keys.stream, {"input_value": str(n)}) for n in range(3)]
        for n in range(3):
            assert await text(c, other, {"input_value": str(n)}) == f"v1: {n}"
        assert await c.broker.runs.get(keys, waits[0]) is None
        assert await c.redis.xlen(keys.stream) == 3
        put(tmp_path, "leaves", version(2))
        done = await runs(c, keys, waits)
        assert [run.result and run.result.text for run in done] == ["v2: 0", "v2: 1", "v2: 2"]


async def test_a_new_file_and_a_moved_stream_are_read_without_a_restart(server_url, engine, tmp_path):
    put(tmp_path, "first", version(1))
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        keys = put(tmp_path, "second", version(2))
        assert await text(c, keys, {"input_value": "x"}) == "v2: x"
        moved = put(tmp_path, "second", version(2), stream="jobs:second")
        assert await text(c, moved, {"input_value": "y"}) == "v2: y"


async def test_a_run_of_a_removed_flow_keeps_its_lease_and_ends(server_url, engine, tmp_path):
    async with Rendezvous() as place:
        keys = put(tmp_path, "held", rendezvous.flow(place.place))
        put(tmp_path, "stays", version(1))
        settings = worker_settings(lease=0.9)
        async with client(server_url) as c:
            async with running(server_url, tmp_path, engine=engine, settings=settings) as worker:
                event = await c.send(keys.stream, {"input_value": "x"})
                meeting = await place.met()
                (tmp_path / "held.json").unlink()

                async def gone() -> bool:
                    (report,) = await c.broker.fleet.workers()
                    return report.routes == ("stays",)

                await until(gone)
                now = await c.redis.zscore(keys.leases, worker.report.worker)

                async def renewed() -> bool:
                    return (await c.redis.zscore(keys.leases, worker.report.worker)) > now + 900

                await until(renewed)
                await meeting.say()
                run = await c.run(keys, event)
                assert (run.status, run.attempts, place.ledger) == (RunStatus.COMPLETED, 1, ["x"])
                (report,) = await c.broker.fleet.workers()
                assert report.name == worker.report.worker
            names = {consumer["name"] for consumer in await c.redis.xinfo_consumers(keys.stream, keys.group)}
            assert names <= {"~parked"}


async def test_a_file_that_is_renamed_while_it_runs_runs_no_event_twice(server_url, engine, tmp_path):
    async with Rendezvous() as place:
        keys = put(tmp_path, "before", rendezvous.flow(place.place), stream="jobs")
        async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
            first = await c.send(keys.stream, {"input_value": "first"})
            meeting = await place.met()
            for suffix in (".yaml", ".json"):
                (tmp_path / f"before{suffix}").rename(tmp_path / f"after{suffix}")
            await engine.loaded("after", times=1)
            second = await c.send(keys.stream, {"input_value": "second"})
            await (await place.met()).say()
            assert (await c.run(keys, second)).route == "after"
            await meeting.say()
            run = await c.run(keys, first)
            assert (run.route, run.status, run.attempts) == ("before", RunStatus.COMPLETED, 1)
            assert place.ledger == ["first", "second"]
