"""Files and large payloads, from the gateway through the archive to a run, with a real worker."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import httpx
import pytest

from runtime.archive.archive import Archive, name_of
from runtime.broker.keys import RouteKeys
from runtime.engine.echo import EchoEngine
from runtime.settings import ArchiveSettings
from runtime.worker import processor
from shared_models.references import FileReference, Reference
from tests.support.gateway import gateway_in_process, gateway_process, route_entry
from tests.support.harness import client, running, worker_settings, write_flow

KEYS = RouteKeys("flows:a", "headrace")


class Reader(EchoEngine):
    """Answers with what the event's files hold; remembers where they were."""

    def __init__(self):
        self.seen = []

    async def run(self, flow, request, history, emit):
        texts = []
        for path in map(Path, request.payload.get("files", ())):
            assert path.is_relative_to(request.files_root)
            self.seen.append(path)
            texts.append(f"{path.name}={path.read_text()}")
        payload = {**request.payload, "input_value": " ".join(texts) or request.payload.get("input_value")}
        request = type(request)(event_id=request.event_id, payload=payload)
        return await super().run(flow, request, history, emit)


def settings_with(archive: Path | None):
    made = worker_settings()
    return made.model_copy(update={"archive": ArchiveSettings(url=archive.as_uri() if archive else None)})


@pytest.fixture
def archive(tmp_path):
    return tmp_path / "archive"


def store(archive: Path) -> Archive:
    made = Archive.open(ArchiveSettings(url=archive.as_uri()))
    assert made is not None
    return made


async def test_a_run_reads_the_files_that_came_with_its_event(server_url, tmp_path, archive):
    write_flow(tmp_path / "flows", "a")
    engine = Reader()
    async with (
        running(server_url, tmp_path / "flows", engine=engine, settings=settings_with(archive)),
        gateway_in_process(server_url, route_entry("a"), archive=archive) as gateway,
    ):
        files = [("files", ("same.txt", b"one")), ("files", ("same.txt", b"two"))]
        done = await gateway.http.post("/v1/routes/a/events?wait=20&tenant_id=t", files=files)
    assert done.json()["result"]["text"] == "same.txt=one same.txt=two", done.text
    assert len(set(engine.seen)) == 2
    assert not any(path.exists() or path.parent.parent.exists() for path in engine.seen)


async def test_a_large_payload_comes_back_whole_and_can_be_the_key(server_url, tmp_path, archive):
    write_flow(tmp_path / "flows", "a", spec={"idempotency": {"key": "payload.order"}})
    text = "x" * 300_000
    async with (
        running(server_url, tmp_path / "flows", settings=settings_with(archive)),
        gateway_in_process(server_url, route_entry("a"), archive=archive) as gateway,
    ):
        sent = {"input_value": text, "order": "7"}
        done = await gateway.http.post("/v1/routes/a/events?wait=20", json=sent)
        assert done.json()["result"]["text"] == text
        assert done.json()["idempotency_key"] == "7"


async def test_what_is_gone_or_altered_or_another_tenants_is_a_dead_letter(server_url, tmp_path, archive):
    write_flow(tmp_path / "flows", "a")
    kept = store(archive)
    altered = await kept.put(None, b'{"input_value": "good"}')
    (archive / name_of(None, altered)).write_bytes(b'{"input_value": "evil"}')
    foreign = await kept.put("other", b'{"input_value": "theirs"}')
    list_ = await kept.put(None, b"[1]")
    expected = {
        str(Reference.of(b"never")): "object_missing",
        str(altered): "object_altered",
        str(foreign): "object_missing",
        str(list_): "event_invalid",
        "s3://bucket/key": "event_invalid",
        f"sha256:{'0' * 64}:{10**12}": "payload_too_large",
    }
    path = str(FileReference(Reference.of(b"no"), "x"))
    async with running(server_url, tmp_path / "flows", settings=settings_with(archive)), client(server_url) as c:
        for number, reference in enumerate(expected):
            fields = {"schema": "1", "event_id": f"e{number}", "payload_ref": reference, "tenant_id": "mine"}
            if reference != str(foreign):
                del fields["tenant_id"]
            await c.redis.xadd("flows:a", fields)
        for number, (reference, code) in enumerate(expected.items()):
            record = await c.run(KEYS, f"e{number}")
            assert record.dead_letter is not None
            assert record.dead_letter.code == code, reference
        dead = {letter["dl_event_id"]: letter for letter in await c.entries("flows:a:dead_letter", len(expected))}
        assert [dead[f"e{n}"]["f:payload_ref"] for n in range(len(expected))] == list(expected)
        event = await c.send("flows:a", {"files": [path]})
        record = await c.run(KEYS, event)
        assert (record.dead_letter.code, record.attempts) == ("object_missing", 1)


async def test_an_archive_that_is_away_costs_no_attempt_and_no_event(server_url, tmp_path, archive, monkeypatch):
    monkeypatch.setattr("runtime.worker.retry.AWAY_AGAIN", (0.3, 0.4))
    monkeypatch.setattr(processor, "AWAY_AGAIN", (0.3, 0.4))
    monkeypatch.setattr("runtime.worker.attachments.AWAY", 0.05)
    write_flow(tmp_path / "flows", "a", spec={"retry": {"max_attempts": 1}})
    reference = await store(archive).put(None, json.dumps({"input_value": "whole"}).encode())
    file = FileReference(await store(archive).put(None, b"in"), "f")
    engine = Reader()
    away = archive.with_name("away")
    async with (
        running(server_url, tmp_path / "flows", engine=engine, settings=settings_with(archive)) as _,
        client(server_url) as c,
    ):
        archive.rename(away)
        archive.write_text("a file where the folder was")
        await c.redis.xadd("flows:a", {"schema": "1", "event_id": "p", "payload_ref": str(reference)})
        await c.send("flows:a", {"files": [str(file)]}, event_id="f")
        # The second look at the event has begun: the first was given back, and says why.
        after, seen = "0-0", set()
        while "released" not in seen:
            for line in await c.broker.runs.feed(KEYS, "f", after=after, block=10):
                after = line.id
                seen.add(line.type.value)
        other = await c.send("flows:a", {"input_value": "others go on"})
        assert (await c.run(KEYS, other)).result.text == "others go on"
        waiting = await c.broker.runs.get(KEYS, "f")
        assert "archive cannot be used" in waiting.last_error
        archive.unlink()
        away.rename(archive)
        for event, text in (("p", "whole"), ("f", "f=in")):
            record = await c.run(KEYS, event)
            assert (record.status, record.attempts, record.result.text) == ("completed", 1, text)


async def test_without_an_archive_such_events_wait_and_others_do_not(server_url, tmp_path, archive, monkeypatch):
    monkeypatch.setattr(processor, "AWAY_AGAIN", (0.3, 0.4))
    write_flow(tmp_path / "flows", "a")
    reference = await store(archive).put(None, b'{"input_value": "later"}')
    async with client(server_url) as c:
        async with running(server_url, tmp_path / "flows", settings=settings_with(None)):
            await c.redis.xadd("flows:a", {"schema": "1", "event_id": "p", "payload_ref": str(reference)})
            assert (await c.run(KEYS, await c.send("flows:a", {"input_value": "x"}))).status == "completed"
        async with running(server_url, tmp_path / "flows", settings=settings_with(archive)):
            assert (await c.run(KEYS, "p")).result.text == "later"


async def test_a_large_file_is_never_in_memory_as_a_whole(server_url, tmp_path, archive):
    """The peak of a gateway's memory, by what the kernel says of it."""
    size = 200_000_000
    with gateway_process(
        server_url, tmp_path, HEADRACE_ARCHIVE__URL=archive.as_uri(), HEADRACE_GATEWAY__MAX_UPLOAD="400000000"
    ) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http, client(server_url) as c:
            await c.broker.fleet.register([route_entry("a")])
            first = await http.post("/v1/routes/a/events", files={"file": ("small", b"x" * 2_000_000)})
            assert first.status_code == 202, first.text
            before = peak(gateway.process.pid)
            with tempfile.TemporaryFile(dir=tmp_path) as file:
                file.truncate(size)
                done = await http.post("/v1/routes/a/events", files={"file": ("large", file)})
            assert done.status_code == 202, done.text
            assert peak(gateway.process.pid) - before < size / 3
    assert max(path.stat().st_size for path in archive.rglob("*")) == size


def peak(pid: int) -> int:
    """Bytes that a process has had resident at most."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
