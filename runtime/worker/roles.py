"""The supervisor's tasks: named, kept, and watched, for one that has silently ended is worse than a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from runtime.worker.identity import end_tasks

log = structlog.get_logger("headrace.worker")


class Roles:
    """Roles run until they are ended; errands end by themselves. ``failed`` is called when one of them fails."""

    def __init__(self, failed: Callable[[], None]) -> None:
        self._failed = failed
        self._roles: set[asyncio.Task[Any]] = set()
        self._errands: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, object], name: str) -> None:
        """Start a role."""
        self._keep(work, name, self._roles)

    def errand(self, work: Coroutine[Any, Any, object], name: str) -> asyncio.Task[Any]:
        """Start something that ends by itself."""
        return self._keep(work, name, self._errands)

    async def end(self, patience: float) -> None:
        """Give the errands ``patience`` seconds to end, then end everything."""
        if self._errands:
            await asyncio.wait(self._errands, timeout=patience)
        await end_tasks(self._roles | self._errands)

    def _keep(self, work: Coroutine[Any, Any, object], name: str, among: set[asyncio.Task[Any]]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=f"supervisor:{name}")
        among.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._errands.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A supervisor without one of its roles must not look alive.
            log.error("supervisor.role_failed", role=task.get_name(), exc_info=error)
            self._failed()


async def first(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waits = [asyncio.create_task(event.wait(), name="supervisor:wait") for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
