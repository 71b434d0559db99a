"""What lies in the flows folder: exports, specs, and a signature that changes whenever one of them may have changed.

Names that begin with a dot are skipped at every level. Links are followed, since a ConfigMap mount is made of them:
each file is a link into ``..data``, itself a link that is swapped when the map changes.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FLOW_SUFFIXES = frozenset({".json", ".zip"})
SPEC_SUFFIXES = frozenset({".yaml", ".yml"})
FILES_SUFFIX = ".files"

MAX_STORED = 1000
"""How many of a flow's stored files count for the signature: looking has to stay cheap."""

JUST_NOW = 3.0
"""Seconds for which a change may hide: a second write in the same tick of a file system's clock leaves no trace."""

Stamp = tuple[int, ...]


@dataclass
class Listing:
    """What was found, by name only. ``unreadable``: folders that could not be listed, and links that lead nowhere."""

    flows: list[Path] = field(default_factory=list)
    specs: list[Path] = field(default_factory=list)
    unreadable: dict[Path, str] = field(default_factory=dict)
    stamps: dict[Path, Stamp] = field(default_factory=dict)
    stored: dict[Path, dict[Path, Stamp]] = field(default_factory=dict)
    """The stored files of each ``NAME.files`` folder."""
    fresh: bool = False
    """A file was changed just now, so that the signature may miss a further change."""

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for two looks between which nothing has changed, unless the earlier was ``fresh``."""
        return (self.stamps, self.stored, self.unreadable)


def look(root: Path) -> Listing:
    """List a flows folder, or one flow file with the spec beside it. Reads names and stamps, never contents."""
    listing = Listing()
    try:
        if root.is_file():
            _one_flow(listing, root)
        else:
            _walk(listing, root, frozenset())
    except OSError as error:
        listing.unreadable[root] = _why(error)
    now = time.time()
    every = [stamp for stamps in (listing.stamps, *listing.stored.values()) for stamp in stamps.values()]
    listing.fresh = any(abs(now - stamp[0] / 1e9) < JUST_NOW for stamp in every)
    return listing


def _one_flow(listing: Listing, path: Path) -> None:
    _add_file(listing, path)
    for suffix in sorted(SPEC_SUFFIXES):
        if (spec := path.with_suffix(suffix)).is_file():
            _add_file(listing, spec)
    _add_stored(listing, path.with_suffix(FILES_SUFFIX))


def _walk(listing: Listing, folder: Path, above: frozenset[tuple[int, int]]) -> None:
    try:
        status = folder.stat()
        inode = (status.st_dev, status.st_ino)
        if inode in above:
            return  # a link back to a folder that we are in
        entries = sorted(_visible(folder), key=lambda entry: entry.name)
    except OSError as error:
        listing.unreadable[folder] = _why(error)
        return
    for entry in entries:
        path = folder / entry.name
        try:
            if entry.is_dir():
                if path.suffix == FILES_SUFFIX:
                    _add_stored(listing, path)
                else:
                    _walk(listing, path, above | {inode})
            elif path.suffix.lower() in FLOW_SUFFIXES | SPEC_SUFFIXES:
                _add_file(listing, path)
        except OSError as error:
            listing.unreadable[path] = _why(error)


def _visible(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from (entry for entry in entries if not entry.name.startswith("."))


def _add_file(listing: Listing, path: Path) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        listing.unreadable[path] = "it is no regular file"  # a pipe would be read for ever, a device without end
        return
    listing.stamps[path] = _stamp(status)
    (listing.specs if path.suffix.lower() in SPEC_SUFFIXES else listing.flows).append(path)


def _add_stored(listing: Listing, folder: Path) -> None:
    stored = listing.stored.setdefault(folder, {})
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders.sort()
        for name in sorted(names):
            if len(stored) >= MAX_STORED:
                return
            path = Path(parent, name)
            try:
                stored[path] = _stamp(path.stat())
            except OSError:
                continue  # gone, or a link that leads nowhere: as if it were not there


def _stamp(status: os.stat_result) -> Stamp:
    # The change time, too: making an unreadable file readable changes nothing else.
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def _why(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
