"""A process that must not outlive the one that started it."""

from __future__ import annotations

import os


def end_with(parent: int) -> None:
    """Be told to end (SIGTERM) when the parent process is gone, however it went. Only Linux can do this."""
    import ctypes
    import signal
    import sys

    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM)
        if os.getppid() != parent:  # it went before the line above
            sys.exit(1)
