"""A form that brings files: they go to the archive, and the event's payload says which.

A file's field names the component that reads it, by id or name; the field ``files`` (or ``file``) is for the flow's one
component that reads files. The field ``payload`` is the payload as JSON; any other text field is one of its keys.
Nothing is ever held in memory as a whole: beyond a megabyte, a file is spooled to disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from runtime.archive.archive import Archive
from runtime.gateway import bodies
from runtime.gateway.deps import Gateway
from runtime.gateway.problems import Problem
from shared_models.errors import EnvelopeInvalid
from shared_models.references import FileReference, file_name

KIND = "multipart/form-data"

MAX_FIELDS = 50
MAX_FIELD = 1024 * 1024
"""Bytes of a field that is no file: those are held in memory."""

_FOR_THE_READER = frozenset({"files", "file", "files[]", "file[]"})
_TOO_MUCH = ("Too many", "Part exceeded")
"""How the parser's messages begin where a limit is passed."""


async def read(gateway: Gateway, request: Request, tenant: str | None) -> dict[str, Any]:
    """The payload of a form, with references to its files, which are in the archive when this returns.

    Raises EnvelopeInvalid, ArchiveUnavailable, and Problem 413 or 415.
    """
    if gateway.archive is None:
        raise Problem(415, "files_not_configured", "this gateway takes no files: it has no HEADRACE_ARCHIVE__URL")
    form = await _parsed(request, gateway.settings.gateway.max_files)
    try:
        texts, files = _sorted(form)
        payload = _payload(texts)
        if files:
            if "files" in payload:
                raise EnvelopeInvalid("files: are given both in the payload and as files of the form", field="files")
            payload["files"] = await _archived(gateway.archive, tenant, files)
    finally:
        await form.close()
    if not payload:
        raise EnvelopeInvalid("body: the form is empty", field="body")
    return payload


async def _parsed(request: Request, max_files: int) -> FormData:
    limits = {"max_files": max_files, "max_fields": MAX_FIELDS, "max_part_size": MAX_FIELD}
    try:
        return await MultiPartParser(request.headers, request.stream(), **limits).parse()
    except MultiPartException as error:
        if error.message.startswith(_TOO_MUCH):
            raise Problem(413, "payload_too_large", f"the form: {error.message}") from error
        raise EnvelopeInvalid(f"body: is not a form: {error.message}", field="body") from error


def _sorted(form: FormData) -> tuple[list[tuple[str, str]], list[tuple[str, UploadFile]]]:
    """The form's texts, and its files; a file input that nobody filled in is none."""
    texts, files = [], []
    for name, value in form.multi_items():
        if isinstance(value, str):
            texts.append((name, value))
        elif value.filename or value.size:
            files.append((name, value))
    return texts, files


def _payload(texts: Sequence[tuple[str, str]]) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    for name, text in texts:
        fresh = bodies.json_object(text) if name == "payload" else {name: text}
        if twice := sorted(payload.keys() & fresh.keys()):
            raise EnvelopeInvalid(f"{twice[0][:80]}: is given twice", field="body")
        payload.update(fresh)
    return payload


async def _archived(
    archive: Archive, tenant: str | None, files: Sequence[tuple[str, UploadFile]]
) -> list[str] | dict[str, list[str]]:
    """References to the files, as the engine reads ``payload.files``: a list, or lists by component."""
    named: dict[str, list[str]] = {}
    for field, file in files:
        reference = FileReference(await archive.put_file(tenant, file.file), file_name(file.filename or "file"))
        named.setdefault("files" if field in _FOR_THE_READER else field, []).append(str(reference))
    if "files" not in named:
        return named
    if len(named) > 1:
        raise EnvelopeInvalid("files: name the component of each file, or of none", field="files")
    return named["files"]
