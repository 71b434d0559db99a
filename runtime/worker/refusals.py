"""What is written where Redis refuses an outcome for good: less and less, down to what is only kept."""

from __future__ import annotations

import time
from dataclasses import replace

import structlog

from runtime.broker.outcome import Completed, DeadLettered, Outcome, Suspended
from runtime.errors import BrokerError, OutcomeTooLarge, PublishRefused
from runtime.worker import callbacks, publications
from runtime.worker.work import Work
from shared_models.dead_letter import ErrorInfo
from shared_models.errors import HeadraceError
from shared_models.result import RunResult

log = structlog.get_logger("headrace.worker")


def entry_gone(work: Work) -> ErrorInfo:
    """The error of an event that cannot be retried, since its entry is no more."""
    return ErrorInfo(
        code="entry_gone",
        message=f"the entry {work.claim.entry_id} was deleted from {work.claim.keys.stream} by somebody else while it "
        "was to be retried; the fields are kept here",
    )


def as_refusal(work: Work, problem: Exception) -> HeadraceError:
    """What kept an outcome from being written; a fault of ours refuses it for good."""
    if isinstance(problem, HeadraceError):
        return problem
    log.error("settle.crashed", event_id=work.claim.event_id, exc_info=problem)
    return BrokerError(f"the outcome cannot be written: {problem!r}")


def less(work: Work, outcome: Completed | Suspended | DeadLettered, refused: HeadraceError) -> DeadLettered | None:
    """What Redis may take where it refuses an outcome for good; None: nothing less tells of the event."""
    if isinstance(outcome, Suspended):
        return dead(work, refused, None)
    if isinstance(outcome, Completed):
        return dead(work, refused, None if isinstance(refused, OutcomeTooLarge) else outcome.result)
    if outcome.publications:
        return replace(outcome, publications=())
    # Limits have many names, above all those of managed servers. Only of a target that is no stream is more known.
    if outcome.result is not None and not isinstance(refused, PublishRefused):
        return replace(outcome, result=None)
    return None


def rungs(whole: Outcome, least: Completed | DeadLettered) -> list[Completed | DeadLettered]:
    """What is to be kept, the best first; each that was refused for good is followed by the next."""
    if not isinstance(whole, Completed | DeadLettered) or not isinstance(least, DeadLettered):
        return [least]
    told = replace(least, result=whole.result)
    return [whole if isinstance(whole, Completed) else told, told, replace(least, result=None)]


def dead(work: Work, refused: HeadraceError, result: RunResult | None) -> DeadLettered:
    """The dead letter of an outcome that was refused: a target is no stream, or is not ours, or all is too big."""
    code = OutcomeTooLarge.code if isinstance(refused, OutcomeTooLarge) else PublishRefused.code
    info = ErrorInfo(code=code, message=refused.message)
    now, read = time.time_ns() // 1_000_000, work.flight.lane.read
    told = publications.dead_lettered(work.active.route, work.envelope, info, now, read=read) if work.envelope else ()
    return DeadLettered(info, result=result, publications=told + callbacks.dead_lettered(work, info, now))
