"""begin: every answer it has, and what it leaves behind."""

from __future__ import annotations

import pytest

from runtime.broker.client import Broker
from runtime.broker.delivery import Verdict
from runtime.errors import BrokerError, GroupMissing
from shared_models.result import RunEventType, RunStatus
from tests.support.hand import KEYS, STREAM, Hand, gate_of, make_due, now, parked, raw, run_of, send, sweep


async def test_run_is_granted_and_recorded(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    entry = await send(broker, "e1", session_id="s")
    attempt = await hand.begin(await hand.one())
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 1)
    record = await run_of(broker, "e1")
    assert record.status is RunStatus.RUNNING
    assert (record.route, record.stream, record.entry_id, record.worker) == ("a", STREAM, entry, "w1")
    assert (record.version, record.idempotency_key, record.attempts) == ("v1", "e1", 1)
    assert record.queued_at == int(entry.partition("-")[0])
    assert record.started_at is not None
    (line,) = await broker.runs.feed(KEYS, "e1")
    assert (line.type, line.data) == (RunEventType.STARTED, {"attempt": 1, "worker": "w1"})
    assert [r.event_id for r in (await broker.runs.page([KEYS])).records] == ["e1"]


async def test_repeated_after_a_lost_reply_answers_the_same(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    attempt = await hand.begin(await hand.one())
    assert await hand.again(attempt) == attempt.grant
    assert (await gate_of(broker, "e1"))["attempts"] == "1"
    assert len(await broker.runs.feed(KEYS, "e1")) == 1


async def test_a_permission_is_no_more_once_its_worker_was_declared_dead(broker: Broker) -> None:
    """What one that was stopped after it asked is told when it asks again."""
    stopped = await Hand.ready(broker)
    await send(broker, "e1")
    attempt = await stopped.begin(await stopped.one())
    assert attempt.grant.verdict is Verdict.RUN
    await stopped.expire()
    other = await Hand.ready(broker, "w2")
    await sweep(broker)
    await make_due(broker)
    assert (await other.begin(await other.one())).grant.verdict is Verdict.RUN
    assert (await stopped.again(attempt)).verdict is Verdict.NO_LEASE
    assert (await gate_of(broker, "e1"))["worker"] == "w2"


async def test_no_lease(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    delivery = await hand.one()
    await hand.expire()
    assert (await hand.begin(delivery)).grant.verdict is Verdict.NO_LEASE
    await hand.renew()
    assert (await hand.begin(delivery)).grant.verdict is Verdict.RUN


async def test_no_group_and_no_stream(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    delivery = await hand.one()
    await raw(broker, "XGROUP", "DESTROY", STREAM, "headrace")
    with pytest.raises(GroupMissing):
        await hand.begin(delivery)
    await raw(broker, "DEL", STREAM)
    with pytest.raises(GroupMissing):
        await hand.begin(delivery)


async def test_a_stream_of_the_wrong_type_is_said_to_be(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    delivery = await hand.one()
    await raw(broker, "DEL", STREAM)
    await raw(broker, "SET", STREAM, "x")
    with pytest.raises(BrokerError, match=r"WRONGTYPE|wrong kind"):
        await hand.begin(delivery)


async def test_not_mine(broker: Broker) -> None:
    one, two = await Hand.ready(broker, "w1"), await Hand.ready(broker, "w2")
    await send(broker, "e1")
    delivery = await one.one()
    assert (await two.begin(delivery)).grant.verdict is Verdict.NOT_MINE
    await one.die()
    assert (await Hand.ready(broker, "w3")) is not None
    assert (await two.begin(delivery)).grant.verdict is Verdict.NOT_MINE


async def test_a_duplicate_of_a_completed_event_is_dropped(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.complete(await hand.begin(await hand.one()))
    await send(broker, "e1")
    grant = (await hand.begin(await hand.one())).grant
    assert (grant.verdict, grant.state, grant.event_id) == (Verdict.ENDED, "completed", "e1")
    assert await raw(broker, "XLEN", STREAM) == 0
    assert (await run_of(broker, "e1")).status is RunStatus.COMPLETED


async def test_another_event_of_a_completed_key_is_answered_by_the_first(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.complete(await hand.begin(await hand.one(), key="k"))
    await send(broker, "e2")
    grant = (await hand.begin(await hand.one(), key="k")).grant
    assert (grant.verdict, grant.state, grant.event_id) == (Verdict.ENDED, "completed", "e1")
    record = await run_of(broker, "e2")
    assert (record.status, record.duplicate_of, record.attempts) == (RunStatus.COMPLETED, "e1", 0)
    assert [line.type for line in await broker.runs.feed(KEYS, "e2")] == [RunEventType.COMPLETED]
    await send(broker, "e2")
    grant = (await hand.begin(await hand.one(), key="k")).grant
    assert (grant.verdict, grant.event_id) == (Verdict.ENDED, "e1")


async def test_a_key_is_free_again_when_its_time_is_over(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.complete(await hand.begin(await hand.one(), ttl=100.0))
    await raw(broker, "DEL", KEYS.gate("e1"))  # as if expired
    await raw(broker, "HSET", KEYS.run("e1"), "ended_at", await now(broker) - 100_001)
    await send(broker, "e1")
    attempt = await hand.begin(await hand.one(), ttl=100.0)
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 1)
    assert (await run_of(broker, "e1")).result is None


async def test_a_duplicate_of_a_running_event_waits(broker: Broker) -> None:
    one, two = await Hand.ready(broker, "w1"), await Hand.ready(broker, "w2")
    await send(broker, "e1")
    running = await one.begin(await one.one())
    second = await send(broker, "e1")
    waiting = await two.begin(await two.one(), wait=100.0)
    assert (waiting.grant.verdict, waiting.grant.holder, waiting.grant.token) == (Verdict.WAIT, "w1", "w1.1")
    assert await parked(broker) == [second]
    assert (await run_of(broker, "e1")).status is RunStatus.RUNNING
    assert await two.fetch() == []
    await one.complete(running)
    await make_due(broker)
    assert (await two.begin(await two.one())).grant.verdict is Verdict.ENDED


async def test_a_duplicate_waits_ever_longer(broker: Broker) -> None:
    """However many workers it meets: the gate counts, and forgets when the waiting is over."""
    one = await Hand.ready(broker, "w1")
    await send(broker, "e1")
    running = await one.begin(await one.one())
    second = await send(broker, "e1")
    for n, seconds in enumerate((0.5, 1, 2, 4, 5, 5, 5), start=1):
        two = await Hand.ready(broker, f"x{n}")
        before = await now(broker)
        waiting = await two.begin(await two.one(), wait=0.5)
        assert (waiting.grant.verdict, waiting.grant.waits) == (Verdict.WAIT, n)
        due = float(await raw(broker, "ZSCORE", KEYS.due, second))
        assert before + 1000 * seconds <= due <= await now(broker) + 1000 * seconds
        await make_due(broker)
    await one.complete(running)
    assert (await one.begin(await one.one())).grant.verdict is Verdict.ENDED
    assert not [name for name in await gate_of(broker, "e1") if name.startswith("w:")]


async def test_another_event_of_a_running_key_waits_and_its_record_says_so(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    running = await hand.begin(await hand.one(), key="k")
    await send(broker, "e2")
    assert (await hand.begin(await hand.one(), key="k", wait=100.0)).grant.verdict is Verdict.WAIT
    record = await run_of(broker, "e2")
    assert record.status is RunStatus.DELAYED
    assert record.due_at is not None
    await hand.bury(running)
    await make_due(broker)
    attempt = await hand.begin(await hand.one(), key="k")
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 1)
    assert (await gate_of(broker, "k"))["event"] == "e2"


async def test_takeover_of_an_own_token_that_is_not_run_any_more(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    lost = await hand.begin(await hand.one())
    await raw(broker, "XGROUP", "DESTROY", STREAM, "headrace")
    await broker.streams.ensure_group(KEYS)
    delivery = await hand.one()
    waiting = await hand.begin(delivery, wait=0.0)
    assert (waiting.grant.verdict, waiting.grant.token) == (Verdict.WAIT, lost.claim.token)
    attempt = await hand.begin(await hand.one(), takeover=waiting.grant.token)
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 2)


async def test_a_redelivered_delayed_entry_is_parked_until_due(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    entry = await send(broker, "e1")
    await hand.retry(await hand.begin(await hand.one()), 1000.0)
    due = float(await raw(broker, "ZSCORE", KEYS.due, entry))
    await raw(broker, "XGROUP", "DESTROY", STREAM, "headrace")
    await broker.streams.ensure_group(KEYS)
    assert (await hand.begin(await hand.one())).grant.verdict is Verdict.WAIT
    assert await parked(broker) == [entry]
    assert float(await raw(broker, "ZSCORE", KEYS.due, entry)) == due


async def test_a_later_event_of_a_dead_key_is_a_new_generation(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    await send(broker, "e1")
    await hand.bury(await hand.begin(await hand.one()))
    # A record's time is in ms: as if the second had come later than in the same one.
    await raw(broker, "HINCRBY", KEYS.run("e1"), "ended_at", -5)
    await raw(broker, "HINCRBY", KEYS.gate("e1"), "ended", -5)
    await send(broker, "e1")
    attempt = await hand.begin(await hand.one())
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 1)
    assert (await gate_of(broker, "e1"))["gen"] == "2"
    record = await run_of(broker, "e1")
    assert (record.status, record.dead_letter) == (RunStatus.RUNNING, None)


async def test_a_staged_outcome_is_handed_to_the_next_holder(broker: Broker) -> None:
    from runtime.broker.scripts import call

    one, two = await Hand.ready(broker, "w1"), await Hand.ready(broker, "w2")
    await send(broker, "e1")
    staged = await one.begin(await one.one())
    who = (KEYS.group, "w1", staged.claim.entry_id, staged.claim.token, "e1")
    stage = call("stage", [STREAM, KEYS.gate("e1")], *who, "{}", 0)
    assert (await broker.connection.run(stage))[0] == 1
    assert (await broker.connection.run(stage))[0] == 1
    assert (await one.again(staged)).verdict is Verdict.STAGED
    await one.die()
    attempt = await two.begin(await two.one())
    assert (attempt.grant.verdict, attempt.grant.event_id) == (Verdict.STAGED, "e1")
    assert await broker.connection.run(stage) == [-2]
    assert (await two.complete(attempt)).name == "DONE"
    assert (await gate_of(broker, "e1"))["state"] == "completed"


async def test_a_staged_outcome_of_an_event_whose_entry_is_gone(broker: Broker) -> None:
    """C25: another event of the key must publish it, or wait for ever."""
    from runtime.broker.scripts import call

    one, two = await Hand.ready(broker, "w1"), await Hand.ready(broker, "w2")
    first = await send(broker, "e1")
    staged = await one.begin(await one.one(), key="k")
    who = (KEYS.group, "w1", first, staged.claim.token, "e1")
    assert (await broker.connection.run(call("stage", [STREAM, KEYS.gate("k")], *who, "{}", 0)))[0] == 1
    await one.die()
    await raw(broker, "XDEL", STREAM, first)
    await send(broker, "e2")
    deliveries = {d.fields[0][1]: d for d in await two.fetch()}
    grant = (await two.begin(deliveries[b"e2"], key="k")).grant
    assert (grant.verdict, grant.event_id, grant.entry_id) == (Verdict.STAGED, "e1", first)


async def test_over_is_granted_for_a_dead_letter_only(broker: Broker) -> None:
    await send(broker, "e1")
    for n, attempts in enumerate((1, 1, 2, 3)):
        hand = await Hand.ready(broker, f"w{n}")
        attempt = await hand.begin(await hand.one())
        assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, attempts)
        await hand.die()
    hand = await Hand.ready(broker, "w4")
    attempt = await hand.begin(await hand.one())
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.OVER, 3)
    assert (await hand.again(attempt)).verdict is Verdict.OVER
    await hand.bury(attempt)
    assert (await run_of(broker, "e1")).status is RunStatus.DEAD_LETTERED


async def test_an_entry_id_that_was_given_twice_is_not_the_same_event(broker: Broker) -> None:
    """DEL may give the id of the deleted entry to another event within the same millisecond."""
    hand = await Hand.ready(broker)
    await raw(broker, "XADD", STREAM, "5-1", "event_id", "e1")
    await hand.retry(await hand.begin(await hand.one(), key="k"), 1000.0)
    await raw(broker, "DEL", STREAM, KEYS.due)
    await broker.streams.ensure_group(KEYS)
    await raw(broker, "XADD", STREAM, "5-1", "event_id", "e2")
    attempt = await hand.begin(await hand.one(), key="k")
    assert (attempt.grant.verdict, attempt.grant.attempts) == (Verdict.RUN, 1)


async def test_a_long_key_is_a_hash(broker: Broker) -> None:
    hand = await Hand.ready(broker)
    key = "k" * 5000
    await send(broker, "e1")
    await hand.complete(await hand.begin(await hand.one(), key=key))
    assert all(len(name) < 400 for name in await raw(broker, "KEYS", "*"))
    await send(broker, "e2")
    assert (await hand.begin(await hand.one(), key=key)).grant.verdict is Verdict.ENDED
