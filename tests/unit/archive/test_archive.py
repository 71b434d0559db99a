"""The archive, on a local folder and in memory: what is put comes back, or it is said why not."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from pathlib import Path

import pytest

from runtime.archive.archive import CHUNK, Archive, name_of
from runtime.errors import ArchiveUnavailable, ObjectAltered, ObjectMissing, ObjectTooLarge, SettingsError
from runtime.settings import ArchiveSettings
from shared_models.errors import EnvelopeInvalid
from shared_models.references import FileReference, Reference, file_name


@pytest.fixture(params=["file", "memory"])
def archive(request, tmp_path):
    url = (tmp_path / "a b").as_uri() if request.param == "file" else "memory://"
    return Archive.open(ArchiveSettings(url=url))


def of_folder(folder: Path, **settings) -> Archive:
    return Archive.open(ArchiveSettings(url=folder.as_uri(), **settings))


async def test_what_is_put_comes_back(archive, tmp_path):
    content = os.urandom(3 * CHUNK)
    reference = await archive.put("t", content)
    assert await archive.get("t", Reference.parse(str(reference), field="x"), most=4 * CHUNK) == content
    await archive.fetch("t", reference, tmp_path / "there")
    assert (tmp_path / "there").read_bytes() == content


async def test_a_spooled_file_is_the_same_object_as_its_bytes(archive):
    content = os.urandom(6 * CHUNK)
    with tempfile.SpooledTemporaryFile(max_size=CHUNK) as file:
        file.write(content)
        reference = await archive.put_file(None, file)
        assert await archive.put_file(None, file) == reference
    assert reference == Reference.of(content)
    assert await archive.get(None, reference, most=len(content)) == content


async def test_in_a_folder_it_is_on_disk_before_anything_refers_to_it(tmp_path, monkeypatch):
    """The stream is, within a second: an event whose payload a power cut took would be a dead letter."""
    archive, synced = of_folder(tmp_path), list[Path]()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    reference = await archive.put("t", b"12345")
    path = tmp_path / name_of("t", reference)
    assert synced == [path, path.parent, tmp_path]
    with tempfile.TemporaryFile() as file:
        file.write(b"123456")
        reference = await archive.put_file("t", file)
    assert synced[3:] == [tmp_path / name_of("t", reference), path.parent, tmp_path]


async def test_nothing_is_one_too(archive):
    assert await archive.get(None, await archive.put(None, b""), most=0) == b""


async def test_tenants_do_not_see_each_others_objects(archive):
    reference = await archive.put("a", b"mine")
    for other in ("b", None, "A", "../t-a", "a/../a"):
        with pytest.raises(ObjectMissing, match="does not have"):
            await archive.get(other, reference, most=100)


async def test_what_is_larger_than_allowed_is_not_read(archive):
    reference = await archive.put(None, b"12345")
    with pytest.raises(ObjectTooLarge, match="5 bytes; at most 4"):
        await archive.get(None, reference, most=4)


@pytest.mark.parametrize("content", [b"54321", b"1234"])
async def test_what_was_altered_is_refused(tmp_path, content):
    archive = of_folder(tmp_path)
    reference = await archive.put(None, b"12345")
    (tmp_path / name_of(None, reference)).write_bytes(content)
    with pytest.raises(ObjectAltered):
        await archive.get(None, reference, most=100)


@pytest.mark.parametrize(
    "tenant", ["../../etc", "..", ".", "a/b", "a\\b", "%2e%2e", "\x00", "", "ü", "x" * 200, "t-a", "_", " "]
)
async def test_no_tenant_leads_out_of_the_folder(tmp_path, tenant):
    archive = of_folder(tmp_path / "in")
    reference = await archive.put(tenant, b"x")
    assert await archive.get(tenant, reference, most=1) == b"x"
    (only,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert only.parent.parent == tmp_path / "in"
    assert name_of(tenant, reference) not in {name_of(other, reference) for other in (None, "a", "b")}


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "s3://bucket/key", "/etc/passwd", "sha256:../../etc/passwd:1", f"sha256:{'A' * 64}:1",
        f"sha256:{'a' * 63}:1", f"sha256:{'a' * 64}:-1", f"sha256:{'a' * 64}:01", f"sha256:{'a' * 64}:1\n",
        f"sha256:{'a' * 64}/../x:1", f"sha256:{'a' * 64}:{10**16}",
    ],
)  # fmt: skip
def test_a_reference_names_a_content_and_no_place(text):
    with pytest.raises(EnvelopeInvalid, match="payload_ref"):
        Reference.parse(text, field="payload_ref")


def test_a_file_reference_is_read_back():
    made = FileReference(Reference.of(b"x"), "a report.pdf")
    assert FileReference.parse(str(made), field="files") == made


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", "", ".", "..", ".bashrc", "a\nb", "x" * 300, "c:x"])
def test_a_file_reference_has_a_plain_name(name):
    with pytest.raises(EnvelopeInvalid, match="plain file name"):
        FileReference.parse(f"archive:{Reference.of(b'x')}/{name}", field="files")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("report.pdf", "report.pdf"), ("../../etc/passwd", "passwd"), ("C:\\Users\\me\\a.txt", "a.txt"), ("", "file"),
        ("..", "file"), ("a\x00b\n.txt", "ab.txt"), (".env", "env"), ("Über 1.pdf", "Über 1.pdf"),
        ("x" * 300 + ".csv", "x" * 116 + ".csv"), ("ü" * 100, "ü" * 60), ("/", "file"), ("a/", "file"),
    ],
)  # fmt: skip
def test_names_of_files_become_plain(given, name):
    assert file_name(given) == name
    assert file_name(name) == name


async def test_what_is_old_expires_and_what_is_sent_again_does_not(tmp_path):
    archive = of_folder(tmp_path, retention=1000.0)
    old, again, fresh = [await archive.put("t", text) for text in (b"old", b"again", b"fresh")]
    (tmp_path / "elsewhere").write_text("not ours")
    (tmp_path / "t-t" / "link").symlink_to(tmp_path / "elsewhere")
    for reference, age in ((old, 1100), (again, 900), (fresh, 100)):
        os.utime(tmp_path / name_of("t", reference), times=(time.time() - age,) * 2)
    await archive.put("t", b"again")
    os.utime(tmp_path / "elsewhere", times=(0, 0))
    assert archive.expire() == 1
    with pytest.raises(ObjectMissing):
        await archive.get("t", old, most=9)
    assert time.time() - (tmp_path / name_of("t", again)).stat().st_mtime < 100
    assert await archive.get("t", fresh, most=9) == b"fresh"
    assert (tmp_path / "elsewhere").exists()


async def test_a_store_that_is_away_says_so_without_its_credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAAAAAAAAAAAAAAAAA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-told")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    archive = Archive.open(ArchiveSettings(url="s3://bucket/prefix"))
    for asked in (archive.put(None, b"x"), archive.get(None, Reference.of(b"x"), most=9)):
        with pytest.raises(ArchiveUnavailable, match="cannot be used") as raised:
            await asked
        assert "not-to-be-told" not in str(raised.value)


async def test_a_folder_that_is_not_there_is_an_archive_that_is_away(tmp_path):
    archive = of_folder(tmp_path / "not-mounted")
    with pytest.raises(ArchiveUnavailable, match="no folder"):
        await archive.get(None, Reference.of(b"x"), most=9)
    assert not (tmp_path / "not-mounted").exists()


@pytest.mark.parametrize("url", ["", "archive", "http://x/y", "file://relative/x", "file:///", "ftp://x"])
def test_other_urls_are_refused(url):
    with pytest.raises(SettingsError, match="HEADRACE_ARCHIVE__URL"):
        Archive.open(ArchiveSettings(url=url))


def test_without_a_url_there_is_none():
    assert Archive.open(ArchiveSettings()) is None


async def test_a_folder_that_cannot_be_listed_is_away_and_ends_no_worker(tmp_path, monkeypatch):
    """Of a network's file system, say: any other error ends the loop that looks after it, and the process with it."""

    def stale(*_):
        raise OSError(errno.ESTALE, "stale file handle")

    monkeypatch.setattr(os, "scandir", stale)
    with pytest.raises(ArchiveUnavailable, match="stale file handle"):
        of_folder(tmp_path).expire()
