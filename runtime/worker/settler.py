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
from runtime.broker.outcome import Completed, DeadLettered, Outcome, Released, Retried, Settled
from runtime.broker.settlement import OutcomeRefused
from runtime.errors import BrokerError, OutcomeTooLarge, PublishRefused
from runtime.settings import Settings
from runtime.worker import publications
from runtime.worker.flights import Abort
from runtime.worker.lanes import Lane
from runtime.worker.work import Work
from shared_models.dead_letter import ErrorInfo
from shared_models.errors import HeadraceError
from shared_models.result import RunResult

log = structlog.get_logger("headrace.worker")

BLOCKED_AGAIN = 1.5
"""A probe that failed is taken again after this many probe intervals, so that the next probe is another event."""

REFUSED_AGAIN = 60.0
"""Seconds until it is tried again to write an outcome that neither its targets nor the dead letters take."""


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
        await self._to_its_end(staged, self._finish(staged))

    async def _finish(self, work: Work) -> None:
        tries = 0
        while work.flight.abort is not Abort.LOST:
            try:
                settled = await self._broker.settlement.finish(work.claim)
            except OutcomeRefused as error:
                less = _dead(work, error.refused, error.result)
                return await self._write(work, less, kept=True)
            except HeadraceError as error:
                tries += 1
                await backoff(work, "publish", error, tries)
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
        if isinstance(outcome, Released) and outcome.error is not None:
            outcome = await self._block(work, outcome)
        first, tries = outcome, 0
        while work.flight.abort is not Abort.LOST:
            try:
                settled = await self._broker.settlement.settle(
                    work.claim,
                    outcome,
                    delivery=work.delivery,
                    attempts=work.attempts,
                    meta=work.meta,
                    dead_letter_stream=work.active.route.dead_letters,
                )
            except Exception as problem:  # noqa: BLE001  also a fault of ours must not have the flow run again
                error = _as_refusal(work, problem)
                if not error.retryable and isinstance(outcome, Completed | DeadLettered):
                    if (less := _less(work, outcome, error)) is not None:
                        outcome = less
                        continue
                    if not isinstance(error, OutcomeTooLarge):
                        whole = first if isinstance(first, Completed) and outcome.result is not None else outcome
                        return await self._hold(work, whole, outcome, error, kept=kept)
                tries += 1
                await backoff(work, "settle", error, tries)
                continue
            if settled is Settled.ENTRY_GONE:
                outcome = DeadLettered(_entry_gone(work))
                continue
            return await self._settled(work, outcome, settled)
        return None

    async def _hold(
        self,
        work: Work,
        whole: Completed | DeadLettered,
        least: Completed | DeadLettered,
        refused: HeadraceError,
        *,
        kept: bool,
    ) -> None:
        """Keep what nothing takes, so that the flow does not run again: its run may have been paid for.

        ``whole`` is tried again until somebody has mended its targets; ``least`` is kept where that cannot be.
        """
        outcome, tries = whole, 0
        while work.flight.abort is not Abort.LOST:
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
                tries += 1
                error = _as_refusal(work, problem)
                outcome = outcome if error.retryable else least
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
    await pause(min(2.0, 0.05 * 2 ** min(tries, 8)) * random.uniform(0.5, 1.0))  # noqa: S311  jitter, not a secret


async def pause(seconds: float) -> None:
    """Wait."""
    await asyncio.sleep(seconds)


def _says_nothing(outcome: Outcome) -> bool:
    """Whether the event itself was at fault, so that its flow may never have come to what the route lacks."""
    if not isinstance(outcome, DeadLettered):
        return False
    return not outcome.error.retryable and outcome.error.provider_status is None


def _entry_gone(work: Work) -> ErrorInfo:
    return ErrorInfo(
        code="entry_gone",
        message=f"the entry {work.claim.entry_id} was deleted from {work.claim.keys.stream} by somebody else while it "
        "was to be retried; the fields are kept here",
    )


def _as_refusal(work: Work, problem: Exception) -> HeadraceError:
    if isinstance(problem, HeadraceError):
        return problem
    log.error("settle.crashed", event_id=work.claim.event_id, exc_info=problem)
    return BrokerError(f"the outcome cannot be written: {problem!r}")


def _less(work: Work, outcome: Completed | DeadLettered, refused: HeadraceError) -> DeadLettered | None:
    """What Redis may take where it refuses an outcome for good; None: nothing less tells of the event."""
    if isinstance(outcome, Completed):
        return _dead(work, refused, None if isinstance(refused, OutcomeTooLarge) else outcome.result)
    if outcome.publications:
        return replace(outcome, publications=())
    if isinstance(refused, OutcomeTooLarge) and outcome.result is not None:
        return replace(outcome, result=None)
    return None


def _dead(work: Work, refused: HeadraceError, result: RunResult | None) -> DeadLettered:
    """The dead letter of an outcome that was refused: a target is no stream, or is not ours, or all is too big."""
    code = OutcomeTooLarge.code if isinstance(refused, OutcomeTooLarge) else PublishRefused.code
    info = ErrorInfo(code=code, message=refused.message)
    now, read = time.time_ns() // 1_000_000, work.flight.lane.read
    told = publications.dead_lettered(work.active.route, work.envelope, info, now, read=read) if work.envelope else ()
    return DeadLettered(info, result=result, publications=told)


def code_of(outcome: Outcome) -> str | None:
    """The error code of an outcome that has one."""
    error = getattr(outcome, "error", None)
    return error.code if error is not None else None


def message_of(outcome: Outcome) -> str | None:
    """The error message of an outcome that has one."""
    error = getattr(outcome, "error", None)
    return error.message if error is not None else None
