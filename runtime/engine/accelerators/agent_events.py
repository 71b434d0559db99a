"""Hand an agent's events over without waking a loop that is awake.

Why: LangChain sends each event of an agent to its reader as from another thread, which writes to a pipe that wakes the
loop and reads it empty again: four system calls an event, some fifty events a run.
Safe because: where the writer is on the reader's own loop, as here, the loop takes the very same calls in the same
order without being woken. A writer on another thread goes the old way.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target

_MODULE = "langchain_core.tracers.memory_stream"


def _install(patches: Patches) -> None:
    def make_send(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        @functools.wraps(original)
        def send_nowait(stream: Any, item: Any) -> None:
            running = asyncio._get_running_loop()
            if running is None or running is not stream._reader_loop or patches.off:
                original(stream, item)
            else:
                running.call_soon(stream._queue.put_nowait, item)

        return send_nowait

    def put(module: ModuleType) -> None:
        patches.replace(module._SendStream, "send_nowait", make_send)

    patches.at_import(_MODULE, put)


AGENT_EVENTS = Accelerator(
    name="agent_events",
    targets=(Target(_MODULE, "_SendStream", frozenset({"768a8be62f725651"})),),
    install=_install,
    package="langchain_core",
)
