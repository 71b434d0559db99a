"""How much memory this process has, and giving back what it does not use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from functools import cache
from pathlib import Path
from typing import Any


def resident() -> int:
    """Bytes of memory that this process has resident; the most that it had, where that is all that is told."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        told = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return told if sys.platform == "darwin" else told * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Give the machine back what has been freed and the allocator still keeps: only glibc keeps so much, and can."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):
            _library().malloc_trim(0)


@cache
def _library() -> Any:
    return ctypes.CDLL(None)
