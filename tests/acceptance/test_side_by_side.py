"""Events beside each other on one warm worker: each carries its own, and none waits for another."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from shared_models.result import RunStatus
from tests.support import flows
from tests.support.flows import Field
from tests.support.harness import client, running, worker_settings
from tests.support.real import REAL, put, runs, text

pytestmark = REAL

CARRIER = """
    async def work(self) -> Message:
        import asyncio, random
        await asyncio.sleep(random.uniform(0, 0.02))
        return Message(text=f"{self.text}|{self.graph.session_id}|{self.secret}")
"""


async def test_b5_200_interleaved_events_on_one_warm_flow_each_carry_their_own(server_url, engine, tmp_path):
    inputs = 'MessageTextInput(name="secret", display_name="Secret")'
    flow = flows.through(CARRIER, inputs=inputs, values={"secret": Field(value="WHOSE", load_from_db=True)})
    keys = put(tmp_path, "carrier", flow, event_variables=["WHOSE"])
    async with (
        client(server_url) as c,
        running(server_url, tmp_path, engine=engine, settings=worker_settings(concurrency=32)),
    ):
        wanted = {}
        for n in range(200):
            payload = {"input_value": f"text-{n}", "variables": {"WHOSE": f"secret-{n}"}, "context": {"n": n}}
            event = await c.send(keys.stream, payload, session_id=f"session-{n}", tenant_id=f"tenant-{n % 3}")
            wanted[event] = n
        results = await c.entries("flows:carrier:results", 200, timeout=60)
        assert {r["parent_id"] for r in results} == set(wanted)
        for result in results:
            n, payload = wanted[result["parent_id"]], json.loads(result["payload"])
            assert payload["input_value"] == f"text-{n}|session-{n}|secret-{n}"
            assert payload["context"] == {"n": n}
            assert (result["session_id"], result["tenant_id"]) == (f"session-{n}", f"tenant-{n % 3}")
            assert payload["outputs"][0]["data"]["session_id"] == f"session-{n}"
        assert engine.loads("carrier") == 1
        done = await runs(c, keys, list(wanted))
        assert {(run.status, run.attempts) for run in done} == {(RunStatus.COMPLETED, 1)}


SLEEPS = {
    "async": """
        async def work(self) -> Message:
            import asyncio
            await asyncio.sleep(1)
            return Message(text="slept")
    """,
    "sync": """
        def work(self) -> Message:
            import time
            time.sleep(1)
            return Message(text="slept")
    """,
}


@pytest.mark.parametrize("kind", SLEEPS)
async def test_b1_events_of_one_flow_run_beside_each_other(server_url, engine, tmp_path, kind):
    n = 10
    keys = put(tmp_path, "sleeper", flows.through(SLEEPS[kind]))
    async with (
        client(server_url) as c,
        running(server_url, tmp_path, engine=engine, settings=worker_settings(concurrency=n)),
    ):
        began = time.monotonic()
        done = await runs(c, keys, [await c.send(keys.stream, {"input_value": "x"}) for _ in range(n)])
        took = time.monotonic() - began
        assert {run.status for run in done} == {RunStatus.COMPLETED}
        # One after the other they would take n seconds.
        assert 1 <= took < n / 2


async def test_b2_a_component_that_blocks_a_thread_holds_up_no_quick_one(server_url, engine, tmp_path):
    """And the lease goes on: the blocked run ends by its own timeout alone."""
    body = "def work(self) -> Message:\n    import time\n    time.sleep(4)\n    return Message(text='')"
    slow = put(tmp_path, "slow", flows.through(body), timeout="3s", retry={"max_attempts": 1})
    quick = put(tmp_path, "quick", flows.hello())
    settings = worker_settings(concurrency=8, lease=1.0)
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine, settings=settings):
        blocked = [await c.send(slow.stream, {"input_value": "x"}) for _ in range(4)]
        done = await runs(c, quick, [await c.send(quick.stream, {"input_value": str(i)}) for i in range(20)])
        assert {run.status for run in done} == {RunStatus.COMPLETED}
        ended = await runs(c, slow, blocked)
        assert {(run.attempts, run.dead_letter and run.dead_letter.code) for run in ended} == {(1, "run_timeout")}
        assert max(run.ended_at or 0 for run in done) < min(run.ended_at or 0 for run in ended)


TOKEN = """
    def work(self) -> Message:
        import os, time
        before = os.environ.get("RUN_TOKEN", "nothing")
        os.environ["RUN_TOKEN"] = self.text
        time.sleep(0.02)
        return Message(text=f"{before}>{os.environ['RUN_TOKEN']}")
"""


async def test_b6_what_one_event_sets_in_the_environment_no_other_sees(server_url, engine, tmp_path):
    keys = put(tmp_path, "token", flows.through(TOKEN))
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        for name in ("first", "second"):
            assert await text(c, keys, {"input_value": name}) == f"nothing>{name}"
        names = [f"n{i}" for i in range(10)]
        said = await asyncio.gather(*(text(c, keys, {"input_value": name}) for name in names))
        assert said == [f"nothing>{name}" for name in names]


async def test_the_variables_of_an_event_are_gone_with_it(server_url, engine, tmp_path):
    inputs = 'MessageTextInput(name="secret", display_name="Secret")'
    body = "def work(self) -> Message:\n    return Message(text=repr(self.secret))"
    flow = flows.through(body, inputs=inputs, values={"secret": Field(value="WHOSE", load_from_db=True)})
    keys = put(tmp_path, "bound", flow, event_variables=["WHOSE"])
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        assert await text(c, keys, {"input_value": "x", "variables": {"WHOSE": "mine"}}) == "'mine'"
        run = await c.run(keys, await c.send(keys.stream, {"input_value": "x"}))
        assert run.dead_letter is not None
        assert "WHOSE" in run.dead_letter.reason
