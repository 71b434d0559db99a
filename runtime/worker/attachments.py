"""What an event has in the archive, brought to its run: its payload, and files in a directory of the run's own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from runtime.archive.archive import Archive
from runtime.engine.base import RunRequest
from runtime.errors import ArchiveUnavailable
from shared_models.envelope import EventEnvelope
from shared_models.errors import EnvelopeInvalid
from shared_models.references import FILE_PREFIX, FileReference, Reference
from shared_models.strict_json import parse_json

AWAY = 5.0
"""Seconds for which an archive that did not answer is not asked again: each question may last its whole timeout."""

_DIRECTORY = "headrace-files-"

_NEW = 60.0
"""Seconds for which a directory is left alone: its process may not hold it yet."""


class Attachments:
    """Resolves references for one worker identity. ``max_payload`` is in bytes."""

    def __init__(self, archive: Archive | None, *, max_payload: int) -> None:
        self._archive = archive
        self._max_payload = max_payload
        self._away = (float("-inf"), "")
        self._swept = False

    async def whole(self, envelope: EventEnvelope) -> EventEnvelope:
        """The envelope with its payload, wherever that is.

        Raises ArchiveUnavailable, an ObjectRefused, and EnvelopeInvalid for a payload that is not a JSON object.
        """
        if envelope.payload_ref is None:
            return envelope
        reference = Reference.parse(envelope.payload_ref, field="payload_ref")
        with self._remembering() as archive:
            content = await archive.get(envelope.tenant_id, reference, most=self._max_payload)
        try:
            payload = parse_json(content.decode(), field="payload_ref")
        except UnicodeDecodeError as error:
            raise EnvelopeInvalid(f"payload_ref: is not UTF-8 (byte {error.start})", field="payload_ref") from error
        if not isinstance(payload, dict):
            raise EnvelopeInvalid("payload_ref: is not a JSON object", field="payload_ref")
        return envelope.model_copy(update={"payload": payload})

    def named(self, request: RunRequest) -> bool:
        """Whether a run has archived files: else ``files`` gives the request as it is."""
        return _any(request.payload.get("files"))

    @asynccontextmanager
    async def files(self, request: RunRequest) -> AsyncIterator[RunRequest]:
        """The request with the archived files of ``payload.files`` as paths, for as long as the block lasts.

        Raises ArchiveUnavailable, an ObjectRefused, and EnvelopeInvalid.
        """
        if not self.named(request):
            yield request
            return
        files = request.payload["files"]
        self._sweep()
        root = Path(tempfile.mkdtemp(prefix=_DIRECTORY))
        held = _hold(root)
        try:
            placed = await self._placed(files, request.tenant_id, root)
            yield replace(request, payload={**request.payload, "files": placed}, files_root=root)
        finally:
            shutil.rmtree(root, ignore_errors=True)
            os.close(held)

    async def _placed(self, value: Any, tenant: str | None, root: Path) -> Any:
        if isinstance(value, Mapping):
            return {name: await self._placed(item, tenant, root) for name, item in value.items()}
        if isinstance(value, list):
            return [await self._placed(item, tenant, root) for item in value]
        if not _is_reference(value):
            return value
        file = FileReference.parse(value, field="files")
        folder = Path(tempfile.mkdtemp(dir=root))  # two files may have one name
        with self._remembering() as archive:
            await archive.fetch(tenant, file.reference, folder / file.name)
        return str(folder / file.name)

    @contextlib.contextmanager
    def _remembering(self) -> Any:
        """The archive, if it is not known to be away. Raises ArchiveUnavailable."""
        if self._archive is None:
            raise ArchiveUnavailable("no archive is configured here: set HEADRACE_ARCHIVE__URL as the gateway has it")
        since, why = self._away
        if time.monotonic() < since + AWAY:
            raise ArchiveUnavailable(why)
        try:
            yield self._archive
        except ArchiveUnavailable as error:
            self._away = (time.monotonic(), error.message)
            raise

    def _sweep(self) -> None:
        """Once: remove what processes that were killed have left."""
        if self._swept:
            return
        self._swept = True
        for path in Path(tempfile.gettempdir()).glob(f"{_DIRECTORY}*"):
            with contextlib.suppress(OSError):
                found = path.stat()
                if found.st_uid != os.getuid() or time.time() - found.st_mtime < _NEW:
                    continue
                held = _hold(path)  # fails where its process lives: in another container, it may have any pid
                shutil.rmtree(path, ignore_errors=True)
                os.close(held)


def _hold(directory: Path) -> int:
    """Lock a directory until the descriptor is closed or this process ends. Raises OSError where another has it."""
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


def _any(files: Any) -> bool:
    if isinstance(files, Mapping):
        return any(map(_any, files.values()))
    return any(map(_is_reference, files)) if isinstance(files, list) else _is_reference(files)


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(FILE_PREFIX)
