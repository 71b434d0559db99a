"""Asking the gate: whether a delivery may run here and now, until Redis has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from runtime.broker.client import Broker
from runtime.broker.delivery import Grant, Verdict
from runtime.errors import GroupMissing
from runtime.worker.board import boot_time
from runtime.worker.flights import Flight
from runtime.worker.lanes import Lane
from runtime.worker.lease import Lease
from runtime.worker.settler import Settler
from runtime.worker.work import Work
from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")

FIRST_WAIT = 0.5
"""Seconds until a duplicate of a running event looks again, the first time; each time it is twice as long."""

STALE = 1 / 3
"""Share of a lease: a permission that took longer to come may be no more, since leases are renewed as often."""

ASKED = 3
"""Times that it is asked for at most, where every answer is late."""

_ACTIONS = {
    Verdict.ENDED: "event.duplicate",
    Verdict.WAIT: "event.waits",
    Verdict.BLOCKED: "event.blocked",
    Verdict.CANCELLED: "event.cancelled",
    Verdict.NOT_MINE: "event.not_mine",
    Verdict.OVER: "event.over",
    Verdict.STAGED: "event.staged",
    Verdict.ALONE: "event.alone",
}
"""What the log says where the gate does not say run."""


class Admission:
    """Asks for one worker identity. ``alone``: nothing else runs in this process."""

    def __init__(
        self,
        broker: Broker,
        lease: Lease,
        settler: Settler,
        *,
        worker: str,
        lease_seconds: float,
        alone: bool,
        new_token: Callable[[Flight], str],
        ask_alone: Callable[[str, str], None] | None,
    ) -> None:
        self._broker = broker
        self._lease = lease
        self._settler = settler
        self._worker = worker
        self._stale = STALE * lease_seconds
        self._alone = alone
        self._new_token = new_token
        self._ask_alone = ask_alone

    async def admit(self, work: Work) -> Grant | None:
        """The right to run the delivery, or (OVER) to dead-letter it. None: neither, and all is done that must be."""
        grant = await self._begin(work)
        if grant is not None and grant.verdict is Verdict.STAGED:
            grant = await self._publish_staged(work, grant)
        if grant is None:
            return None
        if grant.verdict is Verdict.BLOCKED:
            work.flight.lane.blocked = True
        if grant.verdict is Verdict.ALONE and self._ask_alone is not None:
            self._ask_alone(work.active.route.name, work.delivery.entry_id)
        return grant if grant.verdict in (Verdict.RUN, Verdict.OVER) else None

    async def _begin(self, work: Work) -> Grant | None:
        """Ask until Redis has answered. None: not this worker's to run, or told to stop."""
        takeover, tries = "", 0
        while work.flight.abort is None:
            try:
                grant = await self._ask(work, takeover)
            except GroupMissing:
                # The group was destroyed under this entry: once it is back, the entry is delivered anew.
                await self._ensure_group(work.flight.lane)
                return None
            except HeadraceError as error:
                tries += 1
                if not await self._settler.again(work, "begin", error, tries):
                    return None
                continue
            if grant.verdict is Verdict.NO_LEASE:
                await self._lease.renew_now()
                tries += 1
                await asyncio.sleep(min(1.0, 0.05 * 2**tries))
                continue
            forgotten = grant.holder == self._worker and grant.token not in work.flight.lane.flights.values()
            if grant.verdict is Verdict.WAIT and forgotten and grant.token != takeover and await self._take_back(work):
                takeover = grant.token
                continue
            _tell(work, grant)
            return grant
        return None

    async def _ask(self, work: Work, takeover: str) -> Grant:
        """What Redis says, as of now.

        A process that was stopped after it asked (a frozen container, a machine that slept) finds the permission when
        it wakes, and may have been declared dead meanwhile: another worker runs the event then. Who asks again with
        the same claim is told so.
        """
        for left in reversed(range(ASKED)):
            asked = boot_time()
            grant = await self._broker.gate.begin(
                work.claim,
                max_attempts=work.active.route.spec.retry.max_attempts,
                wait=FIRST_WAIT,
                takeover=takeover,
                meta=work.meta,
                probe=work.delivery.probe,
                alone=self._alone or work.poison is not None,  # what is not run harms nobody
            )
            if grant.verdict is not Verdict.RUN or boot_time() - asked < self._stale or not left:
                break
            log.info("event.asked_again", event_id=work.claim.event_id, seconds=round(boot_time() - asked, 3))
        return grant

    async def _publish_staged(self, work: Work, grant: Grant) -> Grant | None:
        """Publish what a dead holder has left staged. It may be another event's, whose entry is gone: then ask anew."""
        await self._settler.finish(work, grant)
        if grant.event_id == work.claim.event_id:
            return None
        work.claim = replace(work.claim, token=self._new_token(work.flight))
        grant_now = await self._begin(work)
        # Still staged: others are at it. The entry is pending, and is looked at again.
        return None if grant_now is not None and grant_now.verdict is Verdict.STAGED else grant_now

    async def _take_back(self, work: Work) -> bool:
        """Take an entry again that was parked for a run of ours that is no more. False: another has it by now."""
        keys, ids = work.flight.lane.keys, [work.claim.entry_id]
        try:
            return bool(await self._broker.recovery.adopt(keys, worker=self._worker, ids=ids))
        except HeadraceError as error:
            log.debug("event.not_taken_back", event_id=work.claim.event_id, code=error.code)
            return False  # parked: it is looked at again

    async def _ensure_group(self, lane: Lane) -> None:
        try:
            await self._broker.streams.ensure_group(lane.keys)
        except HeadraceError as error:
            log.warning("group.not_created", route=lane.name, code=error.code, error=error.message)
        lane.hungry = lane.unsure = True


def _tell(work: Work, grant: Grant) -> None:
    if grant.verdict is Verdict.RUN:
        return
    # What waits says so once; what is staged is told of when it was published, or could not be.
    again = (grant.verdict is Verdict.WAIT and grant.waits > 1) or grant.verdict is Verdict.STAGED
    tell = log.debug if again else log.info
    tell(
        _ACTIONS.get(grant.verdict, "event.not_run"),
        route=work.active.route.name,
        event_id=work.claim.event_id,
        entry=work.claim.entry_id,
        state=grant.state or None,
        first=grant.event_id or None,
    )
