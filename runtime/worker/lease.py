"""The lease: a worker's proof of life, renewed by a thread so that nothing on the event loop can hold it up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

import structlog

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.broker.leases import LeaseState
from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")


class Lease(Protocol):
    """A worker's proof of life under one name, as the roles that read and begin need it."""

    lost: asyncio.Event
    """Set when Redis has declared this name dead."""

    def start(self) -> None:
        """Begin to renew."""

    async def watch(self, keys: Sequence[RouteKeys]) -> bool:
        """Renew these from now on, the first time at once. True when Redis has registered all of them."""

    async def renew_now(self) -> bool:
        """One renewal, out of turn. False if Redis did not answer, or said that this name is dead."""

    async def close(self) -> None:
        """Renew no more."""


class LeaseKeeper:
    """A lease without a supervisor, for a worker within another process: the tests'. A user's worker always has one.

    Renews the leases of one worker name on all its streams every third of a lease, from a thread of its own.

    ``lost`` is set when Redis says that the name was declared dead: it can never be revived.
    """

    def __init__(self, connect: Callable[[], Broker], *, worker: str, lease: float) -> None:
        self.lost = asyncio.Event()
        self._home = asyncio.get_running_loop()
        self._connect = connect
        self._worker = worker
        self._lease = lease
        self._keys: tuple[RouteKeys, ...] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._wake: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._main, name="headrace-lease", daemon=True)
        self._dead = False

    def start(self) -> None:
        """Start the thread; it renews nothing until ``watch``."""
        self._thread.start()
        self._ready.wait()

    async def watch(self, keys: Sequence[RouteKeys]) -> bool:
        """Renew these from now on, the first time at once. True when Redis has registered all of them."""
        self._keys = tuple(keys)
        return await asyncio.wrap_future(self._submit(retry=True))

    async def renew_now(self) -> bool:
        """One renewal, out of turn. False if Redis did not answer, or said that this worker is dead."""
        return await asyncio.wrap_future(self._submit(retry=False))

    async def close(self) -> None:
        """End the thread."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join, 5.0)

    def _submit(self, *, retry: bool) -> Future[bool]:
        if self._loop is None or not self._thread.is_alive():
            failed: Future[bool] = Future()
            failed.set_result(False)
            return failed
        return asyncio.run_coroutine_threadsafe(self._until_renewed() if retry else self._renew(), self._loop)

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._broker = self._connect()
        self._ready.set()
        failures = 0
        try:
            while not self._stop.is_set():
                failures = 0 if await self._renew() else failures + 1
                # Right after Redis is back the renewal must come before anything else: try often while it is away.
                await self._pause(self._lease / 3 if not failures else min(1.0, 0.1 * 2**failures))
        finally:
            await self._broker.close()

    async def _until_renewed(self) -> bool:
        failures = 0
        while self._stop is not None and not self._stop.is_set() and not self._dead:
            if await self._renew():
                return True
            failures += 1
            await self._pause(min(1.0, 0.05 * 2**failures))
        return False

    async def _renew(self) -> bool:
        keys = self._keys
        if not keys or self._dead:
            return not self._dead
        try:
            states = await self._broker.leases.renew(keys, worker=self._worker, ttl=self._lease)
        except HeadraceError as error:
            log.debug("lease.not_renewed", worker=self._worker, code=error.code)
            return False
        if LeaseState.DEAD in states:
            self._dead = True
            log.error("lease.lost", worker=self._worker, streams=len(keys))
            self._home.call_soon_threadsafe(self.lost.set)
            return False
        return True

    async def _pause(self, seconds: float) -> None:
        assert self._stop is not None  # noqa: S101  set before the first pause
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            pass
