"""From an exception to an outcome, in one place. Pure: no clock, no Redis, no Langflow."""

from __future__ import annotations

import random
import traceback

from runtime.broker.outcome import DeadLettered, Outcome, Released, Retried
from runtime.errors import (
    ArchiveError,
    ArchiveUnavailable,
    CheckpointLocked,
    EventFault,
    Fault,
    ObjectRefused,
    RouteFault,
)
from runtime.expressions import ExpressionFailed
from shared_models.dead_letter import ErrorInfo
from shared_models.errors import ContractError
from shared_models.route import RetryPolicy

MAX_RETRY_AFTER = 3600.0
"""Seconds: a provider that asks for more is asked again after this."""

_SAID_ALL = (ContractError, ExpressionFailed, ArchiveError)
"""Errors of which a traceback tells nothing more."""

AWAY_AGAIN = (15.0, 30.0)
"""Seconds, at least and at most, until an event is looked at again that lacked its archive, or its checkpoint's key."""

_TRACEBACK_LIMIT = 8_000


def decide(error: BaseException, *, attempts: int, policy: RetryPolicy, draw: random.Random) -> Outcome:
    """What becomes of an attempt that raised ``error``; ``attempts`` counts this one.

    The event's fault is dead-lettered at once. The route's fault is released: the caller blocks the route, and no
    attempt is charged; an event whose archive or key is not here is released alone. Everything else is retried until
    ``policy.max_attempts`` have failed.
    """
    info = describe(error)
    if isinstance(error, ContractError | EventFault | ExpressionFailed | ObjectRefused):
        return DeadLettered(info)
    if isinstance(error, RouteFault):
        return Released(info)
    if isinstance(error, ArchiveUnavailable | CheckpointLocked):
        return Released(info, draw.uniform(*AWAY_AGAIN), blocks=False)
    if attempts >= policy.max_attempts:
        return DeadLettered(info)
    return Retried(delay(attempts, policy, draw, info.retry_after), info)


def delay(attempts: int, policy: RetryPolicy, draw: random.Random, retry_after: float | None = None) -> float:
    """Seconds to wait after the ``attempts``-th failed attempt: full jitter below a growing bound, or Retry-After.

    Of a policy with ``delays``: the next of them, a fifth more or less.
    """
    if policy.delays:
        base = policy.delays[min(attempts, len(policy.delays)) - 1]
        jitter = base * draw.uniform(0.8, 1.2)
        return jitter if retry_after is None else max(jitter, min(retry_after, max(base, MAX_RETRY_AFTER)))
    bound = min(policy.max, policy.initial * policy.factor ** (attempts - 1))
    jitter = draw.uniform(0.0, bound)
    return jitter if retry_after is None else max(jitter, min(retry_after, MAX_RETRY_AFTER))


def describe(error: BaseException) -> ErrorInfo:
    """The failure as data, for the dead letter, the run record and the log."""
    if isinstance(error, Fault):
        return error.info
    code = getattr(error, "code", "internal_error")
    trace = "".join(traceback.format_exception(error))[-_TRACEBACK_LIMIT:]
    return ErrorInfo(
        code=str(code),
        message=str(error) or type(error).__name__,
        exception_type=f"{type(error).__module__}.{type(error).__qualname__}",
        retryable=bool(getattr(error, "retryable", False)),
        traceback=None if isinstance(error, _SAID_ALL) else trace,
    )
