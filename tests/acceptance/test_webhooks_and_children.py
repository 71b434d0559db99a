"""Flows that take a whole payload, and flows that run other flows."""

from __future__ import annotations

import json
import time

from runtime.broker.keys import RouteKeys
from shared_models.result import RunStatus
from tests.support import flows
from tests.support.harness import Client, client, running
from tests.support.real import REAL, put, text, until

pytestmark = REAL

PAYLOAD = {
    "any": "data",
    "session_id": "the producer's own",
    "tweaks": {"x": 1},
    "variables": {"K": "v"},
    "n": [1, None],
}


def hook(body: str) -> flows.Flow:
    """Webhook to a component to ChatOutput."""
    flow = flows.Flow("Hook")
    webhook = flow.add("Webhook", "Webhook-in")
    code = flows.component(body, inputs='HandleInput(name="data", display_name="Data", input_types=["Data", "JSON"])')
    custom = flow.custom(code.replace("MessageTextInput, Output", "HandleInput, MessageTextInput, Output"), "Custom-it")
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(webhook, "output_data", custom, "data")
    flow.connect(custom, "out", out, "input_value")
    return flow


async def test_c2_the_whole_payload_reaches_the_webhook(server_url, engine, tmp_path):
    body = "def work(self) -> Message:\n    import json\n    return Message(text=json.dumps(self.data.data))"
    keys = put(tmp_path, "hook", hook(body))
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        event = await c.send(keys.stream, PAYLOAD, reply_to="mine")
        run = await c.run(keys, event)
        assert run.status is RunStatus.COMPLETED
        assert run.result is not None
        assert json.loads(run.result.text or "") == PAYLOAD
        assert run.session_id is None
        [reply] = await c.entries("mine", 1)
        assert (reply["parent_id"], json.loads(reply["payload"])["flow"]) == (event, "hook")


async def test_c2_the_final_state_is_told_on_failure_too(server_url, engine, tmp_path):
    body = "def work(self) -> Message:\n    raise RuntimeError('no such order')"
    keys = put(tmp_path, "hook", hook(body), retry={"max_attempts": 2, "initial": "10ms"})
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        event = await c.send(keys.stream, {"order": 7, "context": {"mine": 1}}, reply_to="mine", root_id="root")
        [reply] = await c.entries("mine", 1)
        assert (reply["parent_id"], reply["root_id"]) == (event, "root")
        payload = json.loads(reply["payload"])
        assert (payload["flow"], payload["context"]) == ("hook", {"mine": 1})
        error = payload["error"]
        assert (error["code"], error["component_id"]) == ("component_failed", "Custom-it")
        assert "no such order" in error["message"]
        # What a caller needs to tell a provider's 429 from a fault of the flow.
        assert (error["component_name"], error["exception_type"]) == ("Custom", "RuntimeError")
        assert (error["provider_status"], error["retryable"]) == (None, True)
        assert "traceback" not in error
        assert (await c.run(keys, event)).status is RunStatus.DEAD_LETTERED
        assert await c.redis.exists("flows:hook:results") == 0


# --- flows that run flows -------------------------------------------------------------------------------------------


def child(suffix: str = "!") -> flows.Flow:
    flow = flows.through(f"def work(self) -> Message:\n    return Message(text=self.text.upper() + {suffix!r})")
    flow.name = "The child"
    flow.flow_id = "3f0a1c52-5a3b-4b5e-9d0a-6f7e8d9c0b1a"
    return flow


async def why_unready(c: Client, route: str) -> str:
    """Wait until the fleet knows that a route is not ready; the reason."""

    async def look() -> str | None:
        entry = (await c.broker.fleet.routes()).get(route)
        return entry.reason if entry is not None and not entry.ready else None

    reason: str = await until(look)
    return reason


async def test_a12_a_parent_runs_its_child_and_follows_the_childs_edits(server_url, engine, tmp_path):
    put(tmp_path, "child", child())
    keys = put(tmp_path, "parent", flows.runs_flow(child()))
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        assert await text(c, keys, {"input_value": "hello"}) == "HELLO!"
        assert await text(c, RouteKeys("flows:child", "headrace"), {"input_value": "by itself"}) == "BY ITSELF!"
        put(tmp_path, "child", child("?"))
        await engine.loaded("child", times=2)
        assert await text(c, keys, {"input_value": "hello"}) == "HELLO?"


async def test_a12_a_parent_without_its_child_is_unready_until_the_child_is_there(server_url, engine, tmp_path):
    keys = put(tmp_path, "parent", flows.runs_flow(child()))
    put(tmp_path, "other", flows.hello())
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine) as worker:
        assert worker.report.ready == ("other",)
        [need] = worker.report.unready["parent"]
        assert child().flow_id in need
        assert child().flow_id in await why_unready(c, "parent")
        event = await c.send(keys.stream, {"input_value": "waits"})
        assert await text(c, RouteKeys("flows:other", "headrace"), {"input_value": "goes on"}) == "goes on"
        assert await c.broker.runs.get(keys, event) is None
        began = time.monotonic()
        put(tmp_path, "child", child())
        run = await c.run(keys, event)
        assert time.monotonic() - began < 6
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)
        assert run.result is not None
        assert run.result.text == "WAITS!"


async def test_a12_a_child_that_goes_takes_its_parent_out_of_service(server_url, engine, tmp_path):
    """Its events wait for the child; they are not run into the dead letters."""
    put(tmp_path, "child", child())
    keys = put(tmp_path, "parent", flows.runs_flow(child()))
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        assert await text(c, keys, {"input_value": "hello"}) == "HELLO!"
        (tmp_path / "child.json").unlink()
        assert child().flow_id in await why_unready(c, "parent")
        event = await c.send(keys.stream, {"input_value": "waits"})
        put(tmp_path, "child", child("?"))
        run = await c.run(keys, event)
        assert (run.status, run.attempts, run.result and run.result.text) == (RunStatus.COMPLETED, 1, "WAITS?")
