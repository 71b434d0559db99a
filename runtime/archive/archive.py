"""Puts contents into an object store and gets them back: a local folder, S3, GCS, Azure, or this process's memory.

An object's name is ``<tenant>/<SHA-256>``, made here from nothing that a producer chooses freely. The same content is
the same object, so that a repeated upload changes nothing. What is read is checked against its reference.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote, urlsplit

from runtime.errors import ArchiveUnavailable, ObjectAltered, ObjectMissing, ObjectTooLarge, SettingsError
from runtime.settings import ArchiveSettings
from shared_models.references import Reference

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("file", "memory", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")
CHUNK = 1 << 20
"""Bytes that are read or written at once."""

_RETRIES: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
_CLIENT: Any = {"connect_timeout": "5s", "timeout": "300s", "allow_http": True}
"""HTTP only where the operator's own endpoint says http:// (MinIO in a cluster); the clouds' are https."""
_PARTS: Any = {"chunk_size": 5 * CHUNK, "max_concurrency": 2}
"""Of a file: what S3 takes as a part at least, and how many are in memory at once."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Archive:
    """One object store. To be made in the process that uses it, after any fork."""

    def __init__(self, connect: Callable[[], ObjectStore], *, retention: float, folder: Path | None = None) -> None:
        import obstore  # noqa: PLC0415  an extra; loaded where an archive is used

        self._obstore = obstore
        self._connect = connect
        self._retention = retention
        self._folder = folder

    @classmethod
    def open(cls, settings: ArchiveSettings) -> Archive | None:
        """The archive of the settings; None where none is set. Raises SettingsError."""
        check(settings)
        if settings.url is None:
            return None
        from obstore.exceptions import BaseError  # noqa: PLC0415  as above
        from obstore.store import LocalStore, MemoryStore, from_url  # noqa: PLC0415  as above

        scheme, folder = urlsplit(settings.url).scheme, _folder(settings.url)
        try:
            if folder is not None:
                # Made at its first use: what needs no archive leaves no empty folder behind.
                made = partial(LocalStore, folder, mkdir=True)
                return cls(made, retention=settings.retention, folder=folder)
            if scheme == "memory":
                return cls(MemoryStore, retention=settings.retention)
            store = from_url(settings.url, client_options=_CLIENT, retry_config=_RETRIES)
        except (BaseError, OSError, ValueError) as error:
            raise SettingsError(f"HEADRACE_ARCHIVE__URL: {_first_line(error)}") from error
        return cls(lambda: store, retention=settings.retention)

    async def put(self, tenant: str | None, content: bytes) -> Reference:
        """Keep a content; durable as far as the store is when this returns. Raises ArchiveUnavailable."""
        reference = Reference.of(content)
        if not await self._fresh(tenant, reference):
            with self._translated():
                await self._obstore.put_async(self._store, name_of(tenant, reference), content)
                await self._on_disk(tenant, reference)
        return reference

    async def put_file(self, tenant: str | None, file: BinaryIO) -> Reference:
        """Keep a file's content, never as a whole in memory. Raises ArchiveUnavailable."""
        reference = await asyncio.to_thread(_reference, file)
        if not await self._fresh(tenant, reference):
            file.seek(0)
            with self._translated():
                await self._obstore.put_async(self._store, name_of(tenant, reference), file, **_PARTS)
                await self._on_disk(tenant, reference)
        return reference

    async def get(self, tenant: str | None, reference: Reference, *, most: int) -> bytes:
        """A content of at most ``most`` bytes.

        Raises ObjectTooLarge, ObjectMissing, ObjectAltered, and ArchiveUnavailable.
        """
        if reference.size > most:
            raise ObjectTooLarge(f"the archived content has {reference.size:,} bytes; at most {most:,} are allowed")
        return b"".join([chunk async for chunk in self._read(tenant, reference)])

    async def fetch(self, tenant: str | None, reference: Reference, to: Path) -> None:
        """Write a content to a new file. Raises as ``get``, and OSError."""
        with await asyncio.to_thread(to.open, "xb") as file:
            async for chunk in self._read(tenant, reference):
                await asyncio.to_thread(file.write, chunk)

    def expire(self) -> int:
        """Delete what is older than the retention, in a local folder; how many there were. Blocks.

        Object stores have lifecycle rules for that. Raises ArchiveUnavailable where the folder cannot be listed.
        """
        if self._folder is None:
            return 0
        before, gone = time.time() - self._retention, 0
        with self._translated():
            for path in self._folder.glob("*/*"):
                with contextlib.suppress(OSError):
                    # Also what an interrupted upload has left; a link is no object of ours.
                    if not path.is_symlink() and path.is_file() and path.stat().st_mtime < before:
                        path.unlink()
                        gone += 1
        return gone

    @cached_property
    def _store(self) -> ObjectStore:
        return self._connect()

    async def _fresh(self, tenant: str | None, reference: Reference) -> bool:
        """Whether the object is there and stays for a while: an old one is written anew, which makes it young."""
        with self._translated():
            try:
                meta = await self._obstore.head_async(self._store, name_of(tenant, reference))
            except FileNotFoundError:
                return False
        age = time.time() - meta["last_modified"].timestamp()
        return bool(meta["size"] == reference.size and age < self._retention / 2)

    async def _on_disk(self, tenant: str | None, reference: Reference) -> None:
        """Have a local folder's object outlive the machine: the event that refers to it does, and has nothing else."""
        if self._folder is not None:
            path = self._folder / name_of(tenant, reference)
            for each in (path, path.parent, self._folder):
                await asyncio.to_thread(_sync, each)

    async def _read(self, tenant: str | None, reference: Reference) -> AsyncIterator[bytes]:
        digest = hashlib.sha256()
        if self._folder is not None and not await asyncio.to_thread(self._folder.is_dir):
            raise ArchiveUnavailable(f"the archive cannot be used: there is no folder {self._folder}")
        with self._translated():
            try:
                found = await self._obstore.get_async(self._store, name_of(tenant, reference))
            except FileNotFoundError as error:
                await self._stands()
                raise ObjectMissing(f"the archive does not have {reference}: it expired, or was deleted") from error
            if found.meta["size"] != reference.size:
                raise ObjectAltered(f"what the archive has as {reference} is not {reference.size:,} bytes long")
            async for chunk in found.stream(min_chunk_size=CHUNK):
                digest.update(chunk)
                yield bytes(chunk)
        if digest.hexdigest() != reference.sha256:
            raise ObjectAltered(f"what the archive has as {reference} has another SHA-256: it was altered")

    async def _stands(self) -> None:
        """Fail where it is not the object that is missing, but the bucket: that is no event's fault."""
        async for _ in self._obstore.list(self._store, prefix="_", chunk_size=1):
            return

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (self._obstore.exceptions.BaseError, OSError) as error:
            raise ArchiveUnavailable(f"the archive cannot be used: {_first_line(error)}") from error


def check(settings: ArchiveSettings) -> None:
    """Raise SettingsError where the archive's URL cannot be one, or its package is not installed."""
    if settings.url is None:
        return
    parts = urlsplit(settings.url)
    if parts.scheme not in SCHEMES or (parts.scheme == "file" and (parts.netloc or not _folder(settings.url))):
        raise SettingsError("HEADRACE_ARCHIVE__URL: write file:///PATH, s3://, gs://, az:// or memory://")
    if find_spec("obstore") is None:
        raise SettingsError("HEADRACE_ARCHIVE__URL: the archive needs obstore, which is not here: headrace[store]")


def name_of(tenant: str | None, reference: Reference) -> str:
    """An object's name. No two tenants share one."""
    if tenant is None:
        return f"_/{reference.sha256}"
    if _PLAIN.fullmatch(tenant):
        return f"t-{tenant}/{reference.sha256}"
    return f"h-{hashlib.sha256(tenant.encode()).hexdigest()}/{reference.sha256}"


def _folder(url: str) -> Path | None:
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    return path if parts.scheme == "file" and path.is_absolute() and path != Path("/") else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reference(file: BinaryIO) -> Reference:
    file.seek(0)
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return Reference(digest.hexdigest(), size)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
