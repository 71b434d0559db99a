"""Renewals: the supervisor keeps every child's leases from outside the child's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from runtime.broker.client import Broker
from runtime.broker.leases import LeaseState
from runtime.worker.board import boot_time
from runtime.worker.children import Child, Children
from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")


class Renewals:
    """Renews; kills a child whose name Redis has declared dead. ``refused`` is told why not even the first succeeds."""

    def __init__(
        self, broker: Broker, children: Children, lease: float, *, refused: Callable[[HeadraceError], None]
    ) -> None:
        self._broker = broker
        self._children = children
        self._lease = lease
        self._refused = refused
        self._renewed = False
        self.answered = 0.0
        """When Redis last answered (boot clock)."""

    async def run(self) -> None:
        """Renew all every third of a lease; more often while Redis does not answer."""
        failures = 0
        while True:
            good = await asyncio.gather(*(self.renew(child) for child in self._children))
            failures = 0 if all(good) else failures + 1
            await asyncio.sleep(self._lease / 3 if not failures else min(1.0, 0.1 * 2**failures))

    async def until_answered(self, child: Child) -> bool:
        """Renew a child's leases, again and again until Redis has done it. False if the child ended before."""
        failures = 0
        while not child.ended.is_set():
            if await self.renew(child):
                return True
            failures += 1
            await asyncio.sleep(min(1.0, 0.05 * 2**failures))
        return False

    async def renew(self, child: Child) -> bool:
        """Renew a child's leases once. False if Redis did not answer, or has declared the child dead."""
        if not child.keys or child.ended.is_set():
            return True
        try:
            # A connection that has gone silent must not use up the lease: another try has to fit into what is left.
            async with asyncio.timeout(self._lease / 5):
                states = await self._broker.leases.renew(child.keys, worker=child.name, ttl=self._lease)
        except (HeadraceError, TimeoutError) as error:
            told = log.debug if child.unrenewed else log.warning
            told("lease.not_renewed", worker=child.name, code=getattr(error, "code", "timeout"), error=str(error))
            child.unrenewed = True
            if isinstance(error, HeadraceError) and not error.retryable and not self._renewed:
                self._refused(error)
            return False
        child.unrenewed, self._renewed = False, True
        self.answered = boot_time()
        if LeaseState.DEAD in states:
            # It was declared dead while this supervisor was away: others have its entries.
            log.error("lease.lost", worker=child.name, pid=child.pid)
            child.kill()
            return False
        return True
