"""Wait for the parts of a streamed answer in the task that reads them.

Why: on Python 3.11 a wait with a timeout starts a task for each part of a model's answer. That of the last one ends
with an exception, which refers to the task by way of its traceback: it lives on until the garbage collector finds it,
and keeps the whole graph of an ended run with it (see ``remains``).
Safe because: from Python 3.12 on it is waited for like this by Python itself, with the same errors after the same time.
As there, a source that answers its cancelling with a value or another error has that told, where 3.11 tells the
timeout or the cancelling.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from types import ModuleType
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, StandIn, Target

_MODULE = "langchain_openai.chat_models._client_utils"


def _install(patches: Patches) -> None:
    if sys.version_info >= (3, 12):
        return

    async def wait_for(awaited: Awaitable[Any], timeout: float | None) -> Any:  # noqa: ASYNC109  as it is called
        if patches.off:
            return await asyncio.wait_for(awaited, timeout)
        async with asyncio.timeout(timeout):
            return await awaited

    def put(module: ModuleType) -> None:
        patches.replace(module, "asyncio", lambda original: StandIn(original, wait_for=wait_for))

    patches.at_import(_MODULE, put)


STREAM_TIMEOUTS = Accelerator(
    name="stream_timeouts",
    targets=(Target(_MODULE, "_astream_with_chunk_timeout", frozenset({"1edc51a7c3192939"})),),
    install=_install,
    package="langchain_openai",
)
