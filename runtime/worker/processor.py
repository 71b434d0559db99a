"""One delivery, from its reading to its settlement. Read it top to bottom: `process` is the path of every event.

    take in -> begin -> run under the timeout -> decide -> settle

Every step is a call that returns. What goes wrong becomes an Outcome in `retry.decide`, and an Outcome becomes state in
one place, the settler: nobody else acknowledges, parks or publishes.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from runtime.archive.archive import Archive
from runtime.broker.client import Broker
from runtime.broker.delivery import Delivery, Grant, Verdict
from runtime.broker.outcome import Completed, DeadLettered, Outcome, Released, Retried
from runtime.engine.base import Engine, RunPaused
from runtime.errors import ArchiveUnavailable
from runtime.settings import Settings
from runtime.worker import callbacks, publications
from runtime.worker.admission import Admission
from runtime.worker.attachments import Attachments
from runtime.worker.execution import Aborted, Execution
from runtime.worker.flights import Abort, Flight
from runtime.worker.intake import Intake
from runtime.worker.lanes import ActiveRoute
from runtime.worker.lease import Lease
from runtime.worker.loop_clock import LoopClock
from runtime.worker.resumption import Resumption
from runtime.worker.retry import AWAY_AGAIN, decide, describe
from runtime.worker.settler import Settler, code_of, message_of
from runtime.worker.work import Work
from shared_models.dead_letter import ErrorInfo

log = structlog.get_logger("headrace.worker")


class Processor:
    """Takes deliveries of one worker identity to their settlement."""

    def __init__(
        self,
        broker: Broker,
        engine: Engine,
        lease: Lease,
        settings: Settings,
        *,
        worker: str,
        clock: LoopClock,
        environ: Mapping[str, str] = os.environ,
        archive: Archive | None = None,
        alone: bool = False,
        ask_alone: Callable[[str, str], None] | None = None,
    ) -> None:
        self._settler = Settler(broker, settings)
        attachments = Attachments(archive, max_payload=settings.worker.max_payload)
        self._worker = worker
        self._intake = Intake(worker=worker, max_payload=settings.worker.max_payload, attachments=attachments)
        self._admission = Admission(
            broker,
            lease,
            self._settler,
            worker=worker,
            lease_seconds=settings.worker.lease,
            # Where nobody can be asked for a process of its own, an entry that may have killed its worker runs here.
            alone=alone or ask_alone is None,
            new_token=self._intake.new_token,
            ask_alone=ask_alone,
        )
        self._resumption = Resumption(broker, self._settler, settings)
        self._execution = Execution(broker, engine, clock, attachments, environ=environ)
        self._draw = random.Random()  # noqa: S311  jitter, not a secret

    async def process(self, flight: Flight, delivery: Delivery, active: ActiveRoute) -> None:
        """Take one delivery to its end. Returns when it is settled, or not this worker's any more."""
        try:
            work = await self._intake.take(flight, delivery, active)
        except ArchiveUnavailable as error:
            log.warning("event.postponed", route=active.route.name, entry=delivery.entry_id, error=error.message)
            await self._settler.postpone(flight, self._worker, self._draw.uniform(*AWAY_AGAIN))
            return
        grant = await self._admission.admit(work)
        if grant is None:
            return
        work.attempts, work.followed = grant.attempts, grant.followed
        outcome = await self._outcome(work, grant)
        if outcome is not None:
            await self._settler.settle(work, outcome)

    async def _outcome(self, work: Work, grant: Grant) -> Outcome | None:
        """What becomes of the attempt. None: it was taken away, and nothing may be written."""
        route = work.active.route
        if grant.verdict is Verdict.OVER:
            return _with_reply(work, DeadLettered(_worker_died(grant.attempts)))
        result = None
        try:
            if work.poison is not None:
                raise work.poison
            resume = await self._resumption.of(work, grant)
            output = await self._execution.run(work, resume)
            result = output.result
            assert work.envelope is not None  # noqa: S101  there is one where there is no poison
            published = publications.completed(route, work.envelope, result, _now(), read=work.flight.lane.read)
            return Completed(result, published + callbacks.completed(work, result, _now()), output.chat)
        except Aborted as aborted:
            return _aborted(aborted.why)
        except RunPaused as paused:
            return self._resumption.suspended(work, paused)
        except Exception as error:  # noqa: BLE001  the one place where an exception becomes an outcome
            outcome = decide(error, attempts=work.attempts, policy=route.spec.retry, draw=self._draw)
            if result is not None:  # paid for: kept, though it could not be published, and not paid for again
                outcome = DeadLettered(describe(error), result=result)
            waits = isinstance(outcome, Released) and not outcome.blocks
            log.warning(
                "event.postponed" if waits else "run.failed",  # of the former, not every line is told
                route=route.name,
                event_id=work.claim.event_id,
                attempt=work.attempts,
                outcome=type(outcome).__name__.lower(),
                code=code_of(outcome),
                error=message_of(outcome),
            )
            return _with_reply(work, outcome)


def _aborted(why: Abort) -> Outcome | None:
    match why:
        case Abort.LOST:
            return None
        case Abort.CANCELLED:
            # A failed attempt of an event that somebody cancelled: the script ends it, and publishes nothing.
            return Retried(0.0, ErrorInfo(code="cancelled", message="cancelled on request"))
        case Abort.DRAIN:
            return Released()


def _with_reply(work: Work, outcome: Outcome) -> Outcome:
    if isinstance(outcome, DeadLettered) and work.envelope is not None:
        lane = work.flight.lane
        told = publications.dead_lettered(work.active.route, work.envelope, outcome.error, _now(), read=lane.read)
        return replace(outcome, publications=told + callbacks.dead_lettered(work, outcome.error, _now()))
    return outcome


def _worker_died(attempts: int) -> ErrorInfo:
    return ErrorInfo(
        code="worker_died",
        message=f"the worker process died during each of {attempts} attempts; the flow may crash it (memory, os._exit)",
    )


def _now() -> int:
    return time.time_ns() // 1_000_000
