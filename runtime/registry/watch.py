"""Snapshots of the flows folder as it changes.

Any event of the file system, and every ``poll`` seconds without one, leads to a look at names and stamps; only where
these have changed are files read. The look is what finds changes on file systems that give no events (NFS, some mounts
and container hosts) and behind links that lead out of the folder; the events make it prompt elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar, cast

import structlog
from watchfiles import awatch

from runtime.registry.registry import Registry
from runtime.registry.snapshot import Snapshot

log = structlog.get_logger("headrace.registry")

T = TypeVar("T")

POLL = 1.0
"""Seconds between looks, half of the time within which a change has to take effect."""

STEP = 250
"""Milliseconds between looks at what the system has told, in the watching library's own thread."""

SECOND_LOOK = 0.25
"""Seconds after which a vanished file is believed to be gone: some editors remove a file before they write it anew."""


async def watch(
    registry: Registry,
    *,
    poll: float = POLL,
    stirrings: AsyncGenerator[None, None] | None = None,
    looked: Callable[[], None] = lambda: None,
) -> AsyncGenerator[Snapshot, None]:
    """The snapshot that the registry has, or as it is now, then each that differs from the one before. Has no end.

    One process may watch for others that look at the same folder: ``looked`` is called after each look that found a
    change, and what it tells leads to a look of the others', as their ``stirrings``. A change that comes after such a
    look is found by the next one; so the others, who look later, miss none.
    """
    known = registry.snapshot
    snapshot = await _aside(registry.rescan) if known is None else known
    yield snapshot
    async with aclosing(stirrings or _stirrings(registry.root, poll=poll)) as stirs:
        async for _ in stirs:
            if not await _aside(registry.differs):
                continue
            fresh = await _aside(registry.rescan)
            looked()
            if snapshot.routes.keys() - fresh.routes.keys():
                await asyncio.sleep(SECOND_LOOK)
                fresh = await _aside(registry.rescan)
                looked()
            if fresh is not snapshot:
                snapshot = fresh
                yield snapshot


async def _aside(work: Callable[[], T]) -> T:
    """In a thread that nobody waits for in the end: a mount that hangs must not hold up a process that is to end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("T", result))

    def run() -> None:
        result, failed = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  it is raised where it is awaited
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, name="headrace-folder", daemon=True).start()
    return await done


async def _stirrings(root: Path, *, poll: float) -> AsyncGenerator[None, None]:
    """Something at every file system event, and at least every ``poll`` seconds."""
    told = False
    while True:
        try:
            watched = _inode(root)
            changes = awatch(
                root,
                watch_filter=None,
                debounce=300,
                step=STEP,
                rust_timeout=round(poll * 1000),
                yield_on_timeout=True,
                force_polling=False,
                ignore_permission_denied=True,
            )
            async with aclosing(changes):
                async for _ in changes:
                    yield
                    if _inode(root) != watched:
                        break  # another folder under this name: watch that one
        except Exception as error:  # noqa: BLE001  the library's own, alone or in a group
            # No such folder yet, no more watches to be had, a name that is not UTF-8: looking alone will do.
            if not told:
                log.info("flows.polled", folder=str(root), every=poll, reason=str(error))
                told = True
            await asyncio.sleep(poll)
            yield


def _inode(root: Path) -> tuple[int, int]:
    status = root.stat()
    return (status.st_dev, status.st_ino)
