"""What an event has in the archive, for as long as its run lasts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runtime.archive.archive import Archive
from runtime.engine.base import RunRequest
from runtime.errors import ArchiveUnavailable, ObjectMissing
from runtime.settings import ArchiveSettings
from runtime.worker.attachments import Attachments
from shared_models.errors import EnvelopeInvalid
from shared_models.references import FileReference, Reference


@pytest.fixture
def archive(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    made = Archive.open(ArchiveSettings(url="memory://"))
    assert made is not None
    return made


def request(files, tenant="t"):
    return RunRequest(event_id="e", payload={"files": files, "input_value": "x"}, tenant_id=tenant)


async def kept(archive, content, name="a.txt"):
    return str(FileReference(await archive.put("t", content), name))


def left(tmp_path):
    return list((tmp_path / "tmp").iterdir())


async def test_references_become_paths_and_names_stay(archive, tmp_path):
    one, two = await kept(archive, b"one"), await kept(archive, b"two")
    given = {"File-a": [one, "own.txt"], "File-b": two}
    async with Attachments(archive, max_payload=100).files(request(given)) as ready:
        files = ready.payload["files"]
        assert (Path(files["File-a"][0]).read_bytes(), files["File-a"][1]) == (b"one", "own.txt")
        assert Path(files["File-b"]).read_bytes() == b"two"
        assert Path(files["File-b"]).is_relative_to(ready.files_root)
        assert ready.files_root.stat().st_mode & 0o077 == 0
        assert ready.payload["input_value"] == "x"
    assert not left(tmp_path)


async def test_without_references_nothing_is_made(archive, tmp_path):
    for files in (None, [], ["own.txt"], {"a": "b"}, "own.txt", 7):
        asked = request(files)
        async with Attachments(None, max_payload=100).files(asked) as ready:
            assert ready is asked
    assert not left(tmp_path)


@pytest.mark.parametrize("wrong", ["archive:x", f"archive:{Reference.of(b'x')}/../x", f"archive:{Reference.of(b'x')}"])
async def test_a_reference_that_is_none_is_the_event_s_fault(archive, wrong, tmp_path):
    with pytest.raises(EnvelopeInvalid, match="files"):
        async with Attachments(archive, max_payload=100).files(request([wrong])):
            pass
    assert not left(tmp_path)


async def test_another_tenant_s_file_is_not_there(archive, tmp_path):
    with pytest.raises(ObjectMissing):
        async with Attachments(archive, max_payload=100).files(request([await kept(archive, b"x")], tenant="u")):
            pass
    assert not left(tmp_path)


async def test_a_run_that_is_cancelled_leaves_nothing(archive, tmp_path):
    began = asyncio.Event()

    async def run():
        async with Attachments(archive, max_payload=100).files(request([await kept(archive, b"x")])):
            began.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await began.wait()
    assert left(tmp_path)
    task.cancel()
    await asyncio.wait({task})
    assert not left(tmp_path)


async def test_only_what_no_living_process_holds_is_swept(archive, tmp_path):
    """A pid proves nothing: workers in containers of their own may share a directory for temporary files."""
    for name in ("headrace-files-left", "headrace-files-held", "headrace-files-new", "other"):
        (tmp_path / "tmp" / name).mkdir()
        if not name.endswith("new"):
            os.utime(tmp_path / "tmp" / name, (0, 0))
    words = (
        "import fcntl, os, sys; held = os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(held, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", words, str(tmp_path / "tmp" / "headrace-files-held")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        async with Attachments(archive, max_payload=1000).files(request([await kept(archive, b"x")])):
            pass
    finally:
        holder.communicate(timeout=30)
    assert {path.name for path in left(tmp_path)} == {"headrace-files-held", "headrace-files-new", "other"}


async def test_an_archive_that_is_away_is_not_asked_by_every_event(archive, monkeypatch):
    asked = 0

    async def fetch(*_):
        nonlocal asked
        asked += 1
        raise ArchiveUnavailable("it is away")

    reference = await kept(archive, b"x")
    monkeypatch.setattr(archive, "fetch", fetch)
    attachments = Attachments(archive, max_payload=100)
    for _ in range(3):
        with pytest.raises(ArchiveUnavailable, match="it is away"):
            async with attachments.files(request([reference])):
                pass
    assert asked == 1
