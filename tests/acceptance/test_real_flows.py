"""Real Langflow flows through a real worker and a real server: failing, retried, dead-lettered, mended, requeued."""

from __future__ import annotations

import json

from shared_models.result import RunEventType, RunStatus
from tests.support import flows, rendezvous
from tests.support.harness import client, running
from tests.support.real import REAL, put, runs
from tests.support.rendezvous import Rendezvous

pytestmark = REAL


# --- a component that fails -----------------------------------------------------------------------------------------


BROKEN = """
    def work(self) -> Message:
        prices = {"tea": 3}
        return Message(text=str(prices[self.text]))
"""
MENDED = """
    def work(self) -> Message:
        prices = {"tea": 3, "cake": 5}
        return Message(text=str(prices[self.text]))
"""


async def test_a_component_that_raises_ends_in_the_dead_letters_and_runs_once_it_is_mended(
    server_url, engine, tmp_path
):
    retry = {"initial": "50ms", "max": "200ms"}
    keys = put(tmp_path, "prices", flows.through(BROKEN, title="Price list"), retry=retry)
    async with running(server_url, tmp_path, engine=engine), client(server_url) as c:
        event = await c.send(keys.stream, {"input_value": "cake", "context": {"order": 7}}, session_id="s")
        run = await c.run(keys, event)
        assert (run.status, run.attempts) == (RunStatus.DEAD_LETTERED, 3)
        feed = [line.type for line in await c.broker.runs.feed(keys, event)]
        started, retry = RunEventType.STARTED, RunEventType.RETRY
        assert feed == [started, retry, started, retry, started, RunEventType.DEAD_LETTERED]

        [letter] = await c.broker.dead_letters.list("flows:prices:dead_letter", count=10)
        error = letter.error
        assert (letter.event_id, letter.code, letter.attempts) == (event, "component_failed", 3)
        assert (error.component_id, error.component_name) == ("Custom-it", "Price list")
        assert error.exception_type == "KeyError"
        assert "'cake'" in error.message
        assert error.traceback is not None
        assert "in work" in error.traceback
        assert "KeyError: 'cake'" in error.traceback
        assert letter.version == run.version
        assert json.loads(letter.fields["payload"]) == {"input_value": "cake", "context": {"order": 7}}
        assert await c.redis.exists("flows:prices:results") == 0
        assert await c.redis.xlen(keys.stream) == 0

        put(tmp_path, "prices", flows.through(MENDED, title="Price list"))
        await engine.loaded("prices", times=2)
        await c.broker.dead_letters.requeue(keys, stream="flows:prices:dead_letter", dead_letter_id=letter.id)
        [result] = await c.entries("flows:prices:results", 1)
        payload = json.loads(result["payload"])
        assert (result["parent_id"], payload["input_value"], payload["context"]) == (event, "5", {"order": 7})
        again = await c.run(keys, event)
        assert (again.status, again.attempts) == (RunStatus.COMPLETED, 1)
        assert again.version != run.version
        assert await c.redis.xlen("flows:prices:dead_letter") == 0


async def test_delays_are_drawn_below_bounds_that_grow(server_url, engine, tmp_path):
    """Full jitter: each delay is random below its bound, so that the bounds show over many events."""
    bounds = (100, 400)  # ms after the first and the second failed attempt
    retry = {"initial": "100ms", "factor": 4, "max": "10s"}
    keys = put(tmp_path, "flaky", flows.through(BROKEN), retry=retry)
    delays: tuple[list[int], list[int]] = ([], [])
    async with running(server_url, tmp_path, engine=engine), client(server_url) as c:
        events = [await c.send(keys.stream, {"input_value": "cake"}) for _ in range(24)]
        await runs(c, keys, events)
        for event in events:
            lines = await c.broker.runs.feed(keys, event)
            retried = [line for line in lines if line.type is RunEventType.RETRY]
            started = [line.at for line in lines if line.type is RunEventType.STARTED]
            assert len(started) == 3
            for n, line in enumerate(retried):
                delays[n].append(line.data["due_at"] - line.at)
                assert started[n + 1] >= line.data["due_at"]
    for found, bound in zip(delays, bounds, strict=True):
        assert all(0 <= delay <= bound for delay in found)
        assert max(found) - min(found) > bound / 4
    assert max(delays[1]) > bounds[0]


async def test_an_attempt_that_fails_and_one_that_does_not(server_url, engine, tmp_path):
    async with Rendezvous() as place:
        keys = put(tmp_path, "held", rendezvous.flow(place.place), retry={"initial": "10ms"})
        async with running(server_url, tmp_path, engine=engine), client(server_url) as c:
            event = await c.send(keys.stream, {"input_value": "x"})
            await (await place.met()).fail("not yet")
            await (await place.met()).say("now")
            run = await c.run(keys, event)
            assert (run.status, run.attempts, place.ledger) == (RunStatus.COMPLETED, 2, ["x", "x"])
            assert run.result is not None
            assert run.result.text == "now"
            assert len(await c.entries("flows:held:results", 1)) == await c.redis.xlen("flows:held:results") == 1
