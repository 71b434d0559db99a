"""decide: an exception becomes an outcome in one place."""

from __future__ import annotations

import random

import pytest

from runtime.broker.outcome import DeadLettered, Released, Retried
from runtime.errors import ArchiveUnavailable, EventFault, ObjectMissing, RouteFault, RunFailed, RunTimeout
from runtime.expressions import ExpressionFailed
from runtime.worker.retry import MAX_RETRY_AFTER, decide, delay, describe
from shared_models.dead_letter import ErrorInfo
from shared_models.errors import EnvelopeInvalid, Expired
from shared_models.route import RetryPolicy

POLICY = RetryPolicy()
INFO = ErrorInfo(code="x", message="why", component_id="C-1")


@pytest.fixture
def draw() -> random.Random:
    return random.Random(7)


@pytest.mark.parametrize(
    "error", [EventFault(INFO), EnvelopeInvalid("bad"), Expired(), ExpressionFailed("no such key")]
)
def test_the_events_fault_is_dead_lettered_at_once(error, draw):
    assert isinstance(decide(error, attempts=1, policy=POLICY, draw=draw), DeadLettered)


def test_the_routes_fault_costs_nothing(draw):
    outcome = decide(RouteFault(INFO), attempts=3, policy=POLICY, draw=draw)
    assert outcome == Released(INFO)


@pytest.mark.parametrize("error", [RunFailed(INFO), RunTimeout(INFO), ValueError("a bug"), KeyError("x")])
def test_everything_else_is_retried_until_the_third_failure(error, draw):
    kinds = [type(decide(error, attempts=n, policy=POLICY, draw=draw)) for n in (1, 2, 3)]
    assert kinds == [Retried, Retried, DeadLettered]


def test_the_delay_is_drawn_below_a_growing_bound():
    policy = RetryPolicy(initial="1s", factor=2, max="10s")
    for n, bound in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (50, 10)]:
        drawn = [delay(n, policy, random.Random(seed)) for seed in range(300)]
        assert all(0 <= d <= bound for d in drawn)
        assert max(drawn) > bound * 0.9
        assert min(drawn) < bound * 0.1


def test_retry_after_is_honoured_and_bounded(draw):
    assert delay(1, POLICY, draw, retry_after=30) == 30
    assert delay(1, POLICY, draw, retry_after=1e9) == MAX_RETRY_AFTER
    late = decide(RunFailed(INFO.model_copy(update={"retry_after": 42.0})), attempts=1, policy=POLICY, draw=draw)
    assert isinstance(late, Retried)
    assert late.delay == 42.0


def test_a_table_of_delays_is_followed_a_fifth_more_or_less():
    policy = RetryPolicy(delays=["10s", "2h"])
    assert policy.max_attempts == 3
    for attempts, base in ((1, 10), (2, 7200)):
        drawn = [delay(attempts, policy, random.Random(seed)) for seed in range(300)]
        assert all(0.8 * base <= d <= 1.2 * base for d in drawn)
        assert max(drawn) - min(drawn) > 0.3 * base
    error = RunFailed(INFO)
    outcomes = [decide(error, attempts=n, policy=policy, draw=random.Random(1)) for n in (1, 2, 3)]
    assert [type(outcome) for outcome in outcomes] == [Retried, Retried, DeadLettered]


def test_a_retry_after_of_hours_is_honoured_where_the_table_is_as_slow(draw):
    policy = RetryPolicy(delays=["1s", "10h"])
    assert delay(1, policy, draw, retry_after=30) == 30
    assert delay(1, policy, draw, retry_after=1e9) == MAX_RETRY_AFTER
    assert delay(2, policy, draw, retry_after=1e9) >= 36_000


def test_a_table_says_how_many_attempts_there_are():
    with pytest.raises(ValueError, match="leave max_attempts out"):
        RetryPolicy(delays=["1s"], max_attempts=5)


def test_an_archive_that_is_away_is_waited_for_and_blocks_nothing(draw):
    waits = decide(ArchiveUnavailable(), attempts=9, policy=POLICY, draw=draw)
    assert isinstance(waits, Released)
    assert not waits.blocks
    assert waits.delay >= 15
    assert isinstance(decide(ObjectMissing(), attempts=1, policy=POLICY, draw=draw), DeadLettered)


def test_an_error_of_unknown_kind_is_described_with_its_place():
    try:
        raise ZeroDivisionError("oops")
    except ZeroDivisionError as error:
        info = describe(error)
    assert info.exception_type == "builtins.ZeroDivisionError"
    assert info.code == "internal_error"
    assert "test_retry.py" in (info.traceback or "")


def test_an_events_own_fault_needs_no_traceback():
    assert describe(EnvelopeInvalid("bad")).traceback is None
