"""Flows that run other flows of the registry."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from runtime.engine.base import FlowSource
from runtime.errors import Fault, FlowUnready, RouteFault
from shared_models.result import RunEventType
from tests.integration.engine.conftest import Runner
from tests.support import flows
from tests.support.flows import Field

SHOUTS = "def work(self) -> Message:\n    return Message(text=self.text.upper())"


def child(body: str = SHOUTS, *, name: str = "The child", **more: object) -> flows.Flow:
    flow = flows.through(body, **more)
    flow.name = name
    return flow


def registry(*members: flows.Flow) -> Mapping[str, FlowSource]:
    sources = [flows.source(flow, route=flow.name.lower().replace(" ", "-")) for flow in members]
    return {source.route: source for source in sources}


async def together(run: Runner, target: flows.Flow, caller: flows.Flow) -> FlowSource:
    known = registry(target, caller)
    run.engine.set_siblings(known)
    return known[caller.name.lower().replace(" ", "-")]


@pytest.mark.parametrize("by", ["id", "name"])
async def test_a12_a_child_is_found_by_id_and_by_name(run: Runner, by: str) -> None:
    target = child(name=f"Child by {by}")
    source = await together(run, target, flows.runs_flow(target, by=by, name=f"Parent by {by}"))
    assert await run.text(source, "hello") == "HELLO"
    ended = {data["component_id"]: data.get("flow") for data in run.told.of(RunEventType.COMPONENT_ENDED)}
    assert ended["RunFlow-it"] is None
    assert ended["Custom-it"] == target.name


async def test_a12_a_missing_child_makes_the_parent_unready_and_is_named(run: Runner) -> None:
    target = child(name="Not there")
    with pytest.raises(FlowUnready, match=target.flow_id):
        await run.load(flows.runs_flow(target))


async def test_a_child_without_field_order_gets_its_input(run: Runner) -> None:
    target = child(name="No field order")
    for node in target.nodes:
        node["data"]["node"].pop("field_order", None)
    source = await together(run, target, flows.runs_flow(target, name="Parent of no field order"))
    assert await run.text(source, "hello") == "HELLO"


async def test_a_childs_variables_come_from_the_run_and_not_from_the_environment(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "def work(self) -> Message:\n    return Message(text=repr(self.secret))"
    inputs = 'MessageTextInput(name="secret", display_name="Secret")'
    target = child(
        body,
        name="Child with a variable",
        inputs=inputs,
        values={"secret": Field(value="CHILD_VAR", load_from_db=True)},
    )
    source = await together(run, target, flows.runs_flow(target, name="Parent with a variable"))
    with pytest.raises(RouteFault, match=r"CHILD_VAR"):
        await run(source, "x")
    assert await run.text(source, "x", variables={"CHILD_VAR": "given"}) == "'given'"
    monkeypatch.setenv("CHILD_VAR", "from the environment")
    assert await run.text(source, "x") == "'from the environment'"


async def test_a_child_that_fails_is_told_through_its_parent(run: Runner) -> None:
    target = child("def work(self) -> Message:\n    raise RuntimeError('deep inside')", name="Child that fails")
    source = await together(run, target, flows.runs_flow(target, name="Parent of failure"))
    with pytest.raises(Fault) as caught:
        await run(source, "x")
    assert caught.value.info.component_id == "RunFlow-it"
    assert "deep inside" in caught.value.info.message + str(caught.value.info.traceback)


async def test_b3_a_child_keeps_its_own_history(run: Runner) -> None:
    target = child(name="Child with memory")
    source = await together(run, target, flows.runs_flow(target, name="Parent with memory"))
    await run(source, "hello", session_id="s")
    assert run.history.texts("s") == ["hello", "HELLO"]
    others = {session for session in run.history.messages if session != "s"}
    assert all(target.flow_id in session for session in others)


async def test_flows_that_run_each_other_for_ever_are_stopped(run: Runner) -> None:
    target = child(name="Ping")
    ping = flows.runs_flow(target, name="Ping")
    ping.flow_id = target.flow_id
    known = registry(ping)
    run.engine.set_siblings(known)
    with pytest.raises(Fault, match="deep"):
        await run(known["ping"], "x")


async def test_the_process_environment_is_as_it_was(run: Runner) -> None:
    assert "CHILD_VAR" not in os.environ
