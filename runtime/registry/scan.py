"""The flows folder as it stands, once, without a memory of what it held before."""

from __future__ import annotations

from pathlib import Path

from runtime.registry.registry import Registry
from runtime.registry.snapshot import Snapshot


def scan(root: Path) -> Snapshot:
    """The routes and problems of a flows folder, or of one flow file with the spec beside it."""
    return Registry(root).rescan()
