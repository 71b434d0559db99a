"""Settling: the one place where an outcome becomes state, in one atomic write, repeated until it is answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import structlog

from runtime.broker.client import Broker
from runtime.broker.delivery import Delivery, Grant
from runtime.broker.outcome import Completed, DeadLettered, Outcome, Released, Retried, RunMeta, Settled, Suspended
from runtime.broker.settlement import OutcomeRefused
from runtime.errors import OutcomeTooLarge
from runtime.settings import Settings
from runtime.worker import refusals
from runtime.worker.flights import Abort, Flight
from runtime.worker.lanes import Lane
from runtime.worker.work import Work
from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")

BLOCKED_AGAIN = 1.5
"""A probe that failed is taken again after this many probe intervals, so that the next probe is another event."""

REFUSED = 3
"""Times that Redis may refuse for good what an event needs, before the event is put off."""

REFUSED_AGAIN = 60.0
"""Seconds for which it is put off, and until it is tried again to write an outcome that nothing takes."""


class Settler:
    """Writes outcomes."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker = broker
        self._settings = settings

    async def settle(self, work: Work, outcome: Outcome) -> None:
        """Record the outcome: one atomic write, repeated until it is answered, whatever happens to the caller."""
        await self._to_its_end(work, self._write(work, outcome))

    async def finish(self, work: Work, grant: Grant) -> None:
        """Publish and record the outcome that a dead holder of the gate has staged, under that event's ids."""
        claim = replace(work.claim, event_id=grant.event_id, entry_id=grant.entry_id)
        same = grant.entry_id == work.delivery.entry_id
        delivery = work.delivery if same else Delivery(grant.entry_id, ())
        staged = replace(work, claim=claim, delivery=delivery, attempts=grant.attempts)
        if grant.event_id != work.claim.event_id:
            # Who sent the event in hand, and for whom, says nothing about that one.
            meta = RunMeta(work.meta.route, work.meta.version, root_id=grant.event_id, key=work.meta.key)
            staged = replace(staged, envelope=None, meta=meta)
        await self._to_its_end(staged, self._finish(staged))

    async def _finish(self, work: Work) -> None:
        tries = 0
        while work.flight.abort is not Abort.LOST:
            try:
                settled = await self._broker.settlement.finish(work.claim)
            except OutcomeRefused as error:
                less = refusals.dead(work, error.refused, error.result)
                return await self._write(work, less, kept=True)
            except HeadraceError as error:
                tries += 1
                if not await self.again(work, "publish", error, tries):
                    return None
                continue
            log.info(
                "run.published",
                route=work.active.route.name,
                event_id=work.claim.event_id,
                settled=settled.name.lower(),
            )
            return None
        return None

    async def _to_its_end(self, work: Work, write: Coroutine[Any, Any, None]) -> None:
        writing = asyncio.create_task(write, name=f"settle:{work.claim.event_id}")
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing  # the write goes on while the caller is cancelled: leave only when it has ended
            raise

    async def _write(self, work: Work, outcome: Outcome, *, kept: bool = False) -> None:
        """Write it, or as much of it as Redis takes. ``kept``: the gate keeps the outcome that this comes from."""
        if isinstance(outcome, Released) and outcome.error is not None and outcome.blocks:
            outcome = await self._block(work, outcome)
        whole, tries = outcome, 0
        while work.flight.abort is not Abort.LOST:
            try:
                settled = await self._settle(work, outcome)
            except Exception as problem:  # noqa: BLE001  also a fault of ours must not have the flow run again
                error = refusals.as_refusal(work, problem)
                tries += 1
                if error.retryable or isinstance(outcome, Retried | Released):
                    if not await self.again(work, "settle", error, tries):
                        return None
                elif (less := refusals.less(work, outcome, error)) is not None:
                    if isinstance(error, OutcomeTooLarge):
                        whole = less
                    elif less.result is not getattr(outcome, "result", None):
                        await backoff(work, "settle", error, tries)  # a result is not given up within a moment
                    outcome = less
                else:
                    assert not isinstance(outcome, Suspended)  # noqa: S101  there is less than that
                    return await self._hold(work, whole, outcome, error, kept=kept)
                continue
            if settled is Settled.ENTRY_GONE:
                whole = outcome = DeadLettered(refusals.entry_gone(work))
                continue
            return await self._settled(work, outcome, settled)
        return None

    async def _settle(self, work: Work, outcome: Outcome) -> Settled:
        return await self._broker.settlement.settle(
            work.claim,
            outcome,
            delivery=work.delivery,
            attempts=work.attempts,
            meta=work.meta,
            dead_letter_stream=work.active.route.dead_letters,
        )

    async def _hold(
        self, work: Work, whole: Outcome, least: Completed | DeadLettered, refused: HeadraceError, *, kept: bool
    ) -> None:
        """Keep what nothing takes, so that the flow does not run again: its run may have been paid for.

        ``whole`` is tried again until somebody has mended its targets; ``least`` is kept where that cannot be, without
        the result at last. Where not even that is kept, the entry is put off, and runs again.
        """
        rungs = refusals.rungs(whole, least)
        tries = times = 0
        while work.flight.abort is not Abort.LOST:
            outcome = rungs[min(times, len(rungs) - 1)]
            try:
                settled = await self._broker.settlement.hold(
                    work.claim,
                    None if kept else outcome,
                    delivery=work.delivery,
                    attempts=work.attempts,
                    meta=work.meta,
                    dead_letter_stream=work.active.route.dead_letters,
                    why=refused.message,
                    delay=REFUSED_AGAIN,
                )
            except Exception as problem:  # noqa: BLE001  as above
                error = refusals.as_refusal(work, problem)
                tries, times = tries + 1, times + (not error.retryable)
                if times >= len(rungs) and not error.retryable and await self._put_off(work, error):
                    return
                await backoff(work, "hold", error, tries)
                continue
            log.error(
                "outcome.held",
                route=work.active.route.name,
                event_id=work.claim.event_id,
                settled=settled.name.lower(),
                again=REFUSED_AGAIN,
                code=refused.code,
                error=refused.message,
            )
            work.flight.lane.look_at(time.monotonic() + REFUSED_AGAIN)
            if work.delivery.probe:
                await self._probed(work.flight.lane, outcome)
            return

    async def again(self, work: Work, step: str, error: HeadraceError, tries: int) -> bool:
        """Wait before Redis is asked again. False: it has refused for good too often, and the entry was put off."""
        if not error.retryable and tries >= REFUSED and await self._put_off(work, error):
            return False
        await backoff(work, step, error, tries)
        return True

    async def postpone(self, flight: Flight, worker: str, delay: float) -> None:
        """Look at an entry again after ``delay`` seconds, of which nothing was begun."""
        lane = flight.lane
        try:
            await self._broker.leases.unstarted(lane.keys, worker=worker, ids=[flight.entry_id], delay=delay)
        except HeadraceError as error:
            # It is pending to this worker, and found again by the reconciler.
            log.warning("redis.failed", step="postpone", route=lane.name, code=error.code, error=error.message)
            return
        lane.look_at(time.monotonic() + delay)

    async def _put_off(self, work: Work, refused: HeadraceError) -> bool:
        """Look later at an entry of which Redis takes nothing (somebody wrote over its gate, say): it has a slot.

        False: nor does Redis take that.
        """
        keys, ids = work.flight.lane.keys, [work.claim.entry_id]
        try:
            await self._broker.leases.unstarted(keys, worker=work.claim.worker, ids=ids, delay=REFUSED_AGAIN)
        except HeadraceError:
            return False
        work.flight.lane.look_at(time.monotonic() + REFUSED_AGAIN)
        log.error(
            "event.refused",
            route=work.active.route.name,
            event_id=work.claim.event_id,
            again=REFUSED_AGAIN,
            code=refused.code,
            error=refused.message,
        )
        return True

    async def _settled(self, work: Work, outcome: Outcome, settled: Settled) -> None:
        log.info(
            "run.settled",
            route=work.active.route.name,
            event_id=work.claim.event_id,
            attempt=work.attempts,
            outcome=type(outcome).__name__.lower(),
            settled=settled.name.lower(),
            code=code_of(outcome),
        )
        lane = work.flight.lane
        if isinstance(outcome, Retried | Released) and settled is Settled.DONE:
            lane.look_at(time.monotonic() + outcome.delay)
        if isinstance(outcome, Suspended):
            lane.look_at(time.monotonic() + outcome.wait)
        if work.delivery.probe:
            await self._probed(lane, outcome)

    async def _block(self, work: Work, outcome: Released) -> Released:
        """Block the route before its entry is given back, so that nobody takes it in between."""
        assert outcome.error is not None  # noqa: S101  the caller has looked
        lane, interval, tries = work.flight.lane, self._settings.worker.probe_interval, 0
        while work.flight.abort is not Abort.LOST:
            try:
                first = await self._broker.streams.block(lane.keys, error=outcome.error, probe_interval=interval)
                break
            except HeadraceError as error:
                tries += 1
                if not error.retryable and tries >= REFUSED:
                    return replace(outcome, delay=REFUSED_AGAIN)  # not to be taken again at once
                await backoff(work, "block", error, tries)
        else:
            return outcome
        lane.blocked = True
        if first:
            log.error(
                "route.blocked",
                route=work.active.route.name,
                code=outcome.error.code,
                component=outcome.error.component_id,
                error=outcome.error.message,
            )
        return replace(outcome, delay=interval * BLOCKED_AGAIN if work.delivery.probe else 0.0)

    async def _probed(self, lane: Lane, outcome: Outcome) -> None:
        """A probe tells that its route runs again, or that it does not, or nothing: then another event is asked."""
        if isinstance(outcome, Released):
            return
        if not _says_nothing(outcome):
            await self._unblock(lane)
            return
        try:
            await self._broker.streams.probe_now(lane.keys)
        except HeadraceError as error:
            log.debug("route.probe_later", route=lane.name, code=error.code)
        lane.hungry = True

    async def _unblock(self, lane: Lane) -> None:
        try:
            if await self._broker.streams.unblock(lane.keys):
                log.info("route.unblocked", route=lane.name)
        except HeadraceError as error:
            # The next probe finds out again.
            log.warning("route.not_unblocked", route=lane.name, code=error.code, error=error.message)
            return
        lane.blocked, lane.hungry = False, True


async def backoff(work: Work, step: str, error: HeadraceError, tries: int) -> None:
    """Wait before Redis is asked again; the first failure is logged, the later ones are the same."""
    if tries == 1:
        log.warning(
            "redis.failed",
            step=step,
            route=work.active.route.name,
            event_id=work.claim.event_id,
            code=error.code,
            error=error.message,
        )
    jitter = random.uniform(0.5, 1.0)  # noqa: S311  not a secret
    await asyncio.sleep(min(2.0, 0.05 * 2 ** min(tries, 8)) * jitter)


def _says_nothing(outcome: Outcome) -> bool:
    """Whether the event itself was at fault, so that its flow may never have come to what the route lacks."""
    if not isinstance(outcome, DeadLettered):
        return False
    return not outcome.error.retryable and outcome.error.provider_status is None


def code_of(outcome: Outcome) -> str | None:
    """The error code of an outcome that has one."""
    error = getattr(outcome, "error", None)
    return error.code if error is not None else None


def message_of(outcome: Outcome) -> str | None:
    """The error message of an outcome that has one."""
    error = getattr(outcome, "error", None)
    return error.message if error is not None else None
