"""How much memory this process has."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def resident() -> int:
    """Bytes of memory that this process has resident; the most that it had, where that is all that is told."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
