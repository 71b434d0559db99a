"""What lies in the flows folder: exports, specs, and a signature that changes whenever one of them may have changed.

Names that begin with a dot are skipped at every level. Links are followed, since a ConfigMap mount is made of them:
each file is a link into ``..data``, itself a link that is swapped when the map changes.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

FLOW_SUFFIXES = frozenset({".json", ".zip"})
SPEC_SUFFIXES = frozenset({".yaml", ".yml"})
_KNOWN = FLOW_SUFFIXES | SPEC_SUFFIXES
FILES_SUFFIX = ".files"

MAX_STORED = 1000
"""How many of a flow's stored files count for the signature: looking has to stay cheap."""

JUST_NOW = 3.0
"""Seconds for which a change may hide: a second write in the same tick of a file system's clock leaves no trace."""

Stamp = tuple[int, ...]


@dataclass
class Listing:
    """What was found, by name only. Kept as text, since a look that finds no change is made every second."""

    stamps: dict[str, Stamp] = field(default_factory=dict)
    """Of every export and every spec."""
    stored: dict[str, dict[str, Stamp]] = field(default_factory=dict)
    """The stored files of each ``NAME.files`` folder."""
    faults: dict[str, str] = field(default_factory=dict)
    at: float = field(default_factory=time.time)

    @cached_property
    def flows(self) -> list[Path]:
        """The exports."""
        return sorted(Path(name) for name in self.stamps if _suffix(name) not in SPEC_SUFFIXES)

    @cached_property
    def specs(self) -> list[Path]:
        """The specs."""
        return sorted(Path(name) for name in self.stamps if _suffix(name) in SPEC_SUFFIXES)

    @cached_property
    def unreadable(self) -> dict[Path, str]:
        """Folders that could not be listed, and links that lead nowhere, with the reason."""
        return {Path(name): why for name, why in self.faults.items()}

    @cached_property
    def sizes(self) -> dict[Path, int]:
        """Bytes of each export and spec."""
        return {Path(name): stamp[2] for name, stamp in self.stamps.items()}

    @cached_property
    def attachments(self) -> dict[Path, dict[Path, Stamp]]:
        """The stored files, by folder."""
        return {
            Path(folder): {Path(name): stamp for name, stamp in stamps.items()}
            for folder, stamps in self.stored.items()
        }

    @cached_property
    def fresh(self) -> bool:
        """Whether a file was changed just now, so that the signature may miss a further change."""
        every = (stamp for stamps in (self.stamps, *self.stored.values()) for stamp in stamps.values())
        return any(abs(self.at - stamp[0] / 1e9) < JUST_NOW for stamp in every)

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for two looks between which nothing has changed, unless the earlier was ``fresh``."""
        return (self.stamps, self.stored, self.faults)


def look(root: Path) -> Listing:
    """List a flows folder, or one flow file with the spec beside it. Reads names and stamps, never contents."""
    listing = Listing()
    try:
        if root.is_file():
            _one_flow(listing, root)
        else:
            _walk(listing, str(root), frozenset())
    except OSError as error:
        listing.faults[str(root)] = _why(error)
    listing.at = time.time()
    return listing


def _one_flow(listing: Listing, path: Path) -> None:
    _add_file(listing, str(path), path.stat())
    for suffix in sorted(SPEC_SUFFIXES):
        if (spec := path.with_suffix(suffix)).is_file():
            _add_file(listing, str(spec), spec.stat())
    _add_stored(listing, str(path.with_suffix(FILES_SUFFIX)))


def _walk(listing: Listing, folder: str, above: frozenset[tuple[int, int]]) -> None:
    try:
        status = os.stat(folder)  # noqa: PTH116  no Path is made of what a look goes over: it is made every second
        inode = (status.st_dev, status.st_ino)
        if inode in above:
            return  # a link back to a folder that we are in
        with os.scandir(folder) as found:
            entries = [entry for entry in found if not entry.name.startswith(".")]
    except OSError as error:
        listing.faults[folder] = _why(error)
        return
    for entry in entries:
        try:
            if entry.is_dir():
                if entry.name.endswith(FILES_SUFFIX):
                    _add_stored(listing, entry.path)
                else:
                    _walk(listing, entry.path, above | {inode})
            elif _suffix(entry.name) in _KNOWN:
                _add_file(listing, entry.path, entry.stat())
        except OSError as error:
            listing.faults[entry.path] = _why(error)


def _add_file(listing: Listing, path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        listing.faults[path] = "it is no regular file"  # a pipe would be read for ever, a device without end
        return
    listing.stamps[path] = _stamp(status)


def _add_stored(listing: Listing, folder: str) -> None:
    stored = listing.stored.setdefault(folder, {})
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders.sort()
        for name in sorted(names):
            if len(stored) >= MAX_STORED:
                return
            path = f"{parent}{os.sep}{name}"
            try:
                stored[path] = _stamp(os.stat(path))  # noqa: PTH116  as above
            except OSError:
                continue  # gone, or a link that leads nowhere: as if it were not there


def _stamp(status: os.stat_result) -> Stamp:
    # The change time, too: making an unreadable file readable changes nothing else.
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def _suffix(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:].lower() if dot > 0 else ""


def _why(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
