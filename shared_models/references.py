"""References to what lies in the archive instead of in the stream: payloads and files.

A payload's is the entry field ``payload_ref``: ``sha256:<64 hex digits>:<bytes>``. A file's is a text among
``payload.files``: ``archive:sha256:<64 hex digits>:<bytes>/<name>``. Neither names a place: what is meant is a content
of the event's own tenant, so that no producer can point at anything else.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass

from shared_models.errors import EnvelopeInvalid

FILE_PREFIX = "archive:"
MAX_NAME = 120
"""Bytes of a file's name."""

_REFERENCE = re.compile(r"sha256:([0-9a-f]{64}):(0|[1-9][0-9]{0,14})")


@dataclass(frozen=True, slots=True)
class Reference:
    """A content: its SHA-256 in hex, its size in bytes."""

    sha256: str
    size: int

    def __str__(self) -> str:
        return f"sha256:{self.sha256}:{self.size}"

    @classmethod
    def of(cls, content: bytes) -> Reference:
        """The reference of a content."""
        return cls(hashlib.sha256(content).hexdigest(), len(content))

    @classmethod
    def parse(cls, text: str, *, field: str) -> Reference:
        """A reference from its text. Raises EnvelopeInvalid."""
        if match := _REFERENCE.fullmatch(text):
            return cls(match[1], int(match[2]))
        raise EnvelopeInvalid(f"{field}: is not of the form sha256:<64 hex digits>:<bytes>", field=field)


@dataclass(frozen=True, slots=True)
class FileReference:
    """A file's content, and the name it is given where a flow reads it."""

    reference: Reference
    name: str

    def __str__(self) -> str:
        return f"{FILE_PREFIX}{self.reference}/{self.name}"

    @classmethod
    def parse(cls, text: str, *, field: str) -> FileReference:
        """A reference from its text. Raises EnvelopeInvalid."""
        reference, _, name = text.removeprefix(FILE_PREFIX).partition("/")
        if name != file_name(name):
            raise EnvelopeInvalid(f"{field}: {name[:80]!r} is not a plain file name", field=field)
        return cls(Reference.parse(reference, field=field), name)


def file_name(given: str) -> str:
    """A plain file name from what a client calls a file: no folder, no control character, not hidden, not too long."""
    last = unicodedata.normalize("NFC", given).replace("\\", "/").rpartition("/")[2]
    kept = "".join(c for c in last if c.isprintable() and c not in '<>:"|?*').strip().lstrip(".").strip()
    stem, dot, ending = kept.rpartition(".")
    if dot and stem and len(ending.encode()) < 16:
        return f"{_cut(stem, MAX_NAME - len(ending.encode()) - 1)}.{ending}"
    return _cut(kept, MAX_NAME) or "file"


def _cut(text: str, most: int) -> str:
    return text.encode("utf-8", "ignore")[:most].decode("utf-8", "ignore").strip()
