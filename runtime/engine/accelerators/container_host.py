"""Remember how the machine outside the container is reached.

Why: inside a container the engine looks two host names up for every base URL of a model, on the event loop; where they
do not exist, all other runs wait for the resolver (0.6 to 250 ms).
Safe because: the answer is the container's, not a run's. It is asked for anew every five minutes, by a thread, while
the last one is used.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable

from runtime.engine.accelerators.base import Accelerator, Patches, Target

FRESH = 300.0
"""Seconds for which an answer is used without asking again."""


class Remembered:
    """The last answer of a slow question. Safe for threads, and after a fork."""

    def __init__(self, ask: Callable[[], str | None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._answer: tuple[str | None, float] | None = None
        self._asking = 0

    def get(self) -> str | None:
        """The answer; only the first call waits for it."""
        if self._answer is None:
            with self._lock:
                if self._answer is None:
                    self._refresh()
        assert self._answer is not None  # noqa: S101  it has just been asked
        answer, until = self._answer
        # A child that was forked while its parent asked has not got the thread that did.
        if time.monotonic() > until and self._asking != os.getpid():
            self._asking = os.getpid()
            threading.Thread(target=self._refresh, name="container-host", daemon=True).start()
        return answer

    def _refresh(self) -> None:
        try:
            self._answer = (self._ask(), time.monotonic() + FRESH)
        finally:
            self._asking = 0


def _install(patches: Patches) -> None:
    def make(original: Callable[[], str | None]) -> Callable[[], str | None]:
        remembered = Remembered(original)

        @functools.wraps(original)
        def get_container_host() -> str | None:
            return original() if patches.off else remembered.get()

        return get_container_host

    patches.replace(patches.module("lfx.utils.util"), "get_container_host", make)


CONTAINER_HOST = Accelerator(
    name="container_host",
    targets=(
        Target("lfx.utils.util", "get_container_host", frozenset({"2a58aa670f2d40a1"})),
        Target("lfx.utils.util", "transform_localhost_url", frozenset({"ad7560353d94df29"})),
    ),
    install=_install,
)
