"""How much memory this process has, and keeping glibc's allocator from holding more than it uses."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from functools import cache
from pathlib import Path
from typing import Any

_M_ARENA_MAX = -8
"""As in glibc's malloc.h."""


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


def share_arena() -> None:
    """Have all threads allocate from one arena, unless the environment says how many there are to be.

    glibc gives each thread one of its own, eight for a core: with Python's lock it gains little from them, and what one
    has freed another cannot use. To be called before there is a thread.
    """
    if sys.platform == "linux" and not {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"} & os.environ.keys():
        with contextlib.suppress(AttributeError):
            _library().mallopt(_M_ARENA_MAX, 1)


@cache
def _library() -> Any:
    return ctypes.CDLL(None)
