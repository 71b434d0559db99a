"""Look credentials up without a thread for each.

Why: code of a model that runs on the event loop looks its key up by starting a thread and an event loop of its own for
each, 0.7 to 1.5 ms, two to four times a run, while all other runs wait.
Safe because: as before the look-up runs in the caller's context, on a loop that is not the caller's, and the caller
waits for it. A headless worker has no database, whose connections would belong to a loop. Code of other threads, and a
look-up from within a look-up, go the old way.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target
from runtime.engine.state import CURRENT


class InnerLoop:
    """An event loop for short work in the midst of a callback of a run's loop, on that loop's thread."""

    def __init__(self) -> None:
        self._owner = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._foreign: list[asyncio.AbstractEventLoop] = []
        """Those of the processes that this one was forked from: to close one would act on the descriptors of theirs."""
        self._busy = False
        self._tasks: list[asyncio.Task[Any]] = []
        """Of the work at hand. The loop's own tally is one of all loops: with many runs it is long to look through."""

    @property
    def usable(self) -> bool:
        """Whether the caller is on its run's own loop, and is no such work itself."""
        state = CURRENT.get()
        return state is not None and asyncio._get_running_loop() is state.loop and not self._busy

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of ``work``, which runs in the caller's context. Blocks; raises what it raises."""
        loop = self._idle()
        self._busy, done = True, False
        try:
            with _nowhere():
                result = loop.run_until_complete(work)
            # What it has left would go on in the midst of the next work, which may be another run's.
            done = self._at_rest(loop)
        finally:
            if not done:  # an error, too, may have come between two of its steps
                self.close()
            self._tasks.clear()
            self._busy = False
        return result

    def close(self) -> None:
        """End the loop, and what is left on it."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if self._owner != os.getpid():
            self._foreign.append(loop)
            return
        for task in asyncio.all_tasks(loop):
            task.cancel()
        with _nowhere():
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        self._tasks.clear()  # they have the context of their run

    def _at_rest(self, loop: Any) -> bool:
        """Whether nothing is left on it: no task, no call, no generator.

        Not seen is a task that the loop did not make and that waits for what lies outside of it, a socket say.
        """
        return (
            loop.get_task_factory() == self._task
            and all(task.done() for task in self._tasks)
            and not getattr(loop, "_ready", None)
            and all(handle.cancelled() for handle in getattr(loop, "_scheduled", ()))
            and not getattr(loop, "_asyncgens", None)
        )

    def _idle(self) -> asyncio.AbstractEventLoop:
        if self._owner != os.getpid():
            self.close()
        if self._loop is None:
            # A loop keeps the context that it is made in: it must not be that of the run which came first.
            self._owner, self._loop = os.getpid(), contextvars.Context().run(asyncio.new_event_loop)
            self._loop.set_task_factory(self._task)
        return self._loop

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **more)
        self._tasks.append(task)
        return task


@contextmanager
def _nowhere() -> Iterator[None]:
    """Off the running loop, which waits meanwhile."""
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)


def _install(patches: Patches) -> None:
    inner = InnerLoop()
    patches.at_rest(inner.close)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run_until_complete(work: Coroutine[Any, Any, Any]) -> Any:
            return original(work) if patches.off or not inner.usable else inner.run(work)

        return run_until_complete

    patches.replace(patches.module("lfx.base.models.unified_models.credentials"), "run_until_complete", make)


_MODULE = "lfx.base.models.unified_models.credentials"

CREDENTIALS = Accelerator(
    name="credentials",
    targets=(
        Target("lfx.utils.async_helpers", "run_until_complete", frozenset({"24afb839f20d18ea"})),
        Target(_MODULE, "get_api_key_for_provider", frozenset({"9a4dd283bd8166ce"})),
        Target(_MODULE, "get_all_variables_for_provider", frozenset({"b0d82d253f25c2b3"})),
    ),
    install=_install,
)
