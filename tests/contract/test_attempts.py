"""The attempts table of PROTOCOL 7: what is charged, what is not. Three attempts at most."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from runtime.broker.client import Broker
from runtime.broker.delivery import Verdict
from shared_models.result import RunStatus
from tests.support.hand import DEAD, STREAM, Hand, Try, make_due, raw, run_of, send, sweep


async def begun(broker: Broker, name: str) -> tuple[Hand, Try]:
    hand = await Hand.ready(broker, name)
    return hand, await hand.begin(await hand.one())


async def test_fail_fail_fail(broker: Broker) -> None:
    await send(broker, "e1")
    hand = await Hand.ready(broker)
    for n in (1, 2, 3):
        attempt = await hand.begin(await hand.one())
        assert attempt.grant.attempts == n
        await (hand.retry(attempt) if n < 3 else hand.bury(attempt))
    record = await run_of(broker, "e1")
    assert (record.status, record.attempts) == (RunStatus.DEAD_LETTERED, 3)


async def test_death_death_death(broker: Broker) -> None:
    """The first is free, since it may be another's doing: at most one execution more than attempts."""
    await send(broker, "e1")
    for n, attempts in enumerate((1, 1, 2, 3)):
        hand, attempt = await begun(broker, f"w{n}")
        assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, attempts)
        await hand.die()
    hand, attempt = await begun(broker, "w4")
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.OVER, 3)
    # Whoever was to dead-letter it may die or let go too: it is still not run again.
    await hand.release(attempt)
    attempt = await hand.begin(await hand.one())
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.OVER, 3)
    await hand.die(blame=[])
    hand, attempt = await begun(broker, "w5")
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.OVER, 3)


async def test_fail_death_fail(broker: Broker) -> None:
    await send(broker, "e1")
    hand, attempt = await begun(broker, "w1")
    await hand.retry(attempt)
    attempt = await hand.begin(await hand.one())
    assert attempt.grant.attempts == 2
    await hand.die()
    hand, attempt = await begun(broker, "w2")
    assert attempt.grant.attempts == 2
    await hand.die()
    hand, attempt = await begun(broker, "w3")
    assert attempt.grant.attempts == 3


async def test_after_a_death_it_runs_alone_only(broker: Broker) -> None:
    await send(broker, "e1")
    hand, attempt = await begun(broker, "w1")
    await hand.die()
    hand = await Hand.ready(broker, "w2")
    delivery = await hand.one()
    attempt = await hand.begin(delivery, alone=False, wait=0.0)
    assert attempt.grant.verdict is Verdict.ALONE
    (taken,) = await broker.recovery.adopt(hand.keys, worker="w2", ids=[delivery.entry_id])
    attempt = await hand.begin(taken, alone=True)
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 1)


@pytest.mark.parametrize("ends", list(itertools.product(["fail", "die"], repeat=3)), ids="-".join)
async def test_failures_and_deaths_together_are_at_most_one_execution_more(broker: Broker, ends: Sequence[str]) -> None:
    """Whatever comes after what: only the first death is free, over the whole life of the entry."""
    await send(broker, "e1")
    executions, charged, died = 0, 0, False
    for n, end in enumerate(itertools.cycle(ends)):
        hand, attempt = await begun(broker, f"w{n}")
        if attempt.grant.verdict is Verdict.OVER:
            break
        executions += 1
        assert attempt.grant.attempts == charged + 1
        free = end == "die" and not died
        charged, died = charged + (not free), died or end == "die"
        if end == "die":
            await hand.die()
        elif attempt.grant.attempts == 3:
            break
        else:
            await hand.retry(attempt)
    assert charged == 3
    assert executions == 3 + died


async def test_a_failure_does_not_end_the_suspicion(broker: Broker) -> None:
    """Beside others it would be charged for the death of another, or let to have one more of its own."""
    await send(broker, "e1")
    hand, attempt = await begun(broker, "w1")
    await hand.die()
    hand, attempt = await begun(broker, "w2")
    await hand.retry(attempt)
    assert (await hand.begin(await hand.one(), alone=False)).grant.verdict is Verdict.ALONE
    attempt = await hand.begin(await hand.one())
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 2)
    await hand.bury(attempt)
    (letter,) = await broker.dead_letters.list(DEAD)
    await broker.dead_letters.requeue(hand.keys, stream=DEAD, dead_letter_id=letter.id)
    assert (await hand.begin(await hand.one(), alone=False)).grant.verdict is Verdict.RUN


async def test_fifty_releases(broker: Broker) -> None:
    await send(broker, "e1")
    hand = await Hand.ready(broker)
    for _ in range(50):
        attempt = await hand.begin(await hand.one())
        assert attempt.grant.attempts == 1
        await hand.release(attempt)
    await hand.complete(await hand.begin(await hand.one()))
    record = await run_of(broker, "e1")
    assert (record.status, record.attempts) == (RunStatus.COMPLETED, 1)


async def test_prefetched_in_five_dead_workers(broker: Broker) -> None:
    await send(broker, "e1")
    for n in range(5):
        hand = await Hand.ready(broker, f"w{n}")
        await hand.fetch()
        await hand.die()
    hand = await Hand.ready(broker, "last")
    delivery = await hand.one()
    ((_, _, _, deliveries),) = await raw(broker, "XPENDING", STREAM, "headrace", "-", "+", 10)
    assert deliveries == 6
    assert (await hand.begin(delivery)).grant.attempts == 1


async def test_a_hang_is_charged_and_its_neighbour_is_not(broker: Broker) -> None:
    await send(broker, "hung")
    await send(broker, "beside")
    hand = await Hand.ready(broker, "w1")
    hung, beside = [await hand.begin(d) for d in await hand.fetch()]
    assert (hung.grant.attempts, beside.grant.attempts) == (1, 1)
    await hand.die(blame=[hung.claim.token])
    other = await Hand.ready(broker, "w2")
    hung, beside = [await other.begin(d) for d in await other.fetch()]
    assert (hung.grant.attempts, beside.grant.attempts) == (1, 1)
    await other.die(blame=[hung.claim.token])
    third = await Hand.ready(broker, "w3")
    hung, beside = [await third.begin(d) for d in await third.fetch()]
    assert (hung.grant.attempts, beside.grant.attempts) == (2, 1)


async def test_beside_others_that_hang_too_there_is_one_execution_more_than_attempts(broker: Broker) -> None:
    """Not charged for its neighbour's hang, but alone from then on: else bad neighbours could keep it from an end."""
    await send(broker, "e1")
    for n, attempts in enumerate((1, 1, 2, 3)):
        hand, attempt = await begun(broker, f"w{n}")
        assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, attempts)
        await hand.die(blame=[f"w{n}.99"] if n == 0 else None)
    _, attempt = await begun(broker, "w4")
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.OVER, 3)


async def test_nobody_is_blamed_for_a_recycled_worker(broker: Broker) -> None:
    await send(broker, "e1")
    for n in range(5):
        hand, attempt = await begun(broker, f"w{n}")
        assert attempt.grant.attempts == 1
        await hand.die(blame=[])


async def test_nobody_is_blamed_where_it_was_excused(broker: Broker) -> None:
    """SIGTERM was received; then the platform killed it at its own deadline and the lease ended."""
    await send(broker, "e1")
    for n in range(5):
        hand, attempt = await begun(broker, f"w{n}")
        assert attempt.grant.attempts == 1
        await broker.leases.excuse([hand.keys], worker=hand.name)
        await hand.expire()
        await sweep(broker)


async def test_another_token_that_is_a_prefix_is_not_blamed(broker: Broker) -> None:
    await send(broker, "e1")
    hand = await Hand.ready(broker, "w1")
    await hand.begin(await hand.one(), token="w1.1")
    await hand.die(blame=["w1.11", "w1.1.1"])
    _, attempt = await begun(broker, "w2")
    assert attempt.grant.attempts == 1


async def test_a_begin_whose_answer_was_lost_with_its_worker_counts_as_a_death(broker: Broker) -> None:
    await send(broker, "e1")
    for n, attempts in enumerate((1, 1, 2)):
        hand, attempt = await begun(broker, f"w{n}")
        assert attempt.grant.attempts == attempts
        await hand.die()


async def test_reconciled_and_unstarted_are_not_charged(broker: Broker) -> None:
    entry = await send(broker, "e1")
    hand = await Hand.ready(broker, "w1")
    await hand.fetch()  # the answer was lost
    for _ in range(5):
        (found,) = await broker.reader.read_ids(hand.keys, await broker.reader.pending(hand.keys, worker="w1"))
        assert await broker.leases.unstarted(hand.keys, worker="w1", ids=[found.entry_id]) == 1
        await hand.fetch()
    found = (await broker.reader.read_ids(hand.keys, [entry]))[0]
    assert await broker.leases.unstarted(hand.keys, worker="w1", ids=[entry], delay=100.0) == 1
    assert await hand.fetch() == []
    await make_due(broker)
    (found,) = await hand.fetch()
    assert (await hand.begin(found)).grant.attempts == 1
    ((_, _, _, deliveries),) = await raw(broker, "XPENDING", STREAM, "headrace", "-", "+", 10)
    assert deliveries == 1
