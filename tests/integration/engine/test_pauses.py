"""Flows that ask a person: they wait with all they have done, and go on where they were, on whichever engine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from runtime.engine.base import FlowSource, Resume, RunOutput, RunPaused
from runtime.errors import EventFault
from shared_models.result import Decision
from tests.integration.engine.conftest import Runner
from tests.support import flows
from tests.support.provider import Say, ToolCall


async def pause(run: Runner, flow: flows.Flow | FlowSource, text: str = "may I?", **more: Any) -> RunPaused:
    """The flow's question."""
    with pytest.raises(RunPaused) as caught:
        await run(flow, text, **more)
    return caught.value


def answer(paused: RunPaused, action: str, **values: Any) -> Resume:
    """A person's decision."""
    return Resume(paused.state, paused.pause.request_id, Decision(action_id=action, values=values))


async def go_on(
    run: Runner, flow: flows.Flow | FlowSource, paused: RunPaused, action: str, text: str = "may I?", **more: Any
) -> RunOutput:
    """The flow's end with a decision."""
    return await run(flow, text, resume=answer(paused, action), **more)


async def test_a24_a_flow_that_asks_says_what(run: Runner) -> None:
    paused = await pause(run, flows.asks(fallback=True))
    asked = paused.pause
    assert (asked.kind, asked.prompt, asked.fallback) == ("node_input", "may I?", "fallback")
    assert [(o.action_id, o.label) for o in asked.options] == [("approve", "Approve"), ("reject", "Reject")]
    assert asked.allowed == ["approve", "reject", "fallback"]
    assert asked.request_id.startswith("HumanInput-ask:")
    assert paused.timeout == 60.0


@pytest.mark.parametrize("action", ["approve", "reject", "fallback"])
async def test_a_decision_takes_its_branch_and_no_other(run: Runner, action: str) -> None:
    flow = flows.asks(fallback=True)
    paused = await pause(run, flow)
    result = (await go_on(run, flow, paused, action)).result
    assert result.text == f"{action}: may I?"
    assert [output.id for output in result.outputs] == [f"ChatOutput-ask-{action}"]


async def test_one_checkpoint_goes_on_as_often_as_it_must(run: Runner) -> None:
    flow = flows.asks()
    paused = await pause(run, flow)
    for action in ("approve", "reject", "approve"):
        assert (await go_on(run, flow, paused, action)).result.text == f"{action}: may I?"


async def test_chat_messages_of_both_parts_are_committed_once(run: Runner) -> None:
    flow = flows.asks()
    paused = await pause(run, flow, session_id="s1")
    assert run.history.texts("s1") == []
    await go_on(run, flow, paused, "approve", session_id="s1")
    assert run.history.texts("s1") == ["may I?", "approve: may I?"]


async def test_a_flow_may_ask_twice(run: Runner) -> None:
    flow = flows.Flow("Asks twice")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    flows.ask(flow, "first", chat_in, "message")
    flow.nodes = [node for node in flow.nodes if node["id"] != "ChatOutput-first-approve"]
    flow.edges = [edge for edge in flow.edges if edge["target"] != "ChatOutput-first-approve"]
    flows.ask(flow, "second", "Custom-first-approve", "out")
    first = await pause(run, flow)
    with pytest.raises(RunPaused) as caught:
        await go_on(run, flow, first, "approve")
    second = caught.value
    assert (second.pause.prompt, second.pause.request_id[:17]) == ("approve: may I?", "HumanInput-second")
    result = (await go_on(run, flow, second, "reject")).result
    assert [(o.id, o.text) for o in result.outputs] == [("ChatOutput-second-reject", "reject: approve: may I?")]
    assert (await go_on(run, flow, first, "reject")).result.text == "reject: may I?"


async def test_two_questions_of_one_layer_are_asked_one_after_the_other(run: Runner) -> None:
    flow = flows.Flow("Asks two at once")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    flows.ask(flow, "a", chat_in, "message")
    flows.ask(flow, "b", chat_in, "message")
    first = await pause(run, flow)
    asked = first.pause.request_id.split(":")[0]
    with pytest.raises(RunPaused) as caught:
        await go_on(run, flow, first, "approve")
    second = caught.value
    assert {asked, second.pause.request_id.split(":")[0]} == {"HumanInput-a", "HumanInput-b"}
    outputs = (await go_on(run, flow, second, "reject")).result.outputs
    other = second.pause.request_id.split(":")[0][-1]
    assert sorted((o.id, o.text) for o in outputs) == sorted(
        [
            (f"ChatOutput-{asked[-1]}-approve", "approve: may I?"),
            (f"ChatOutput-{other}-reject", "reject: may I?"),
        ]
    )


async def test_outputs_from_before_the_pause_are_in_the_result(run: Runner) -> None:
    """A table is not what a checkpoint keeps."""
    flow = flows.asks(name="Asks beside a table")
    body = "def work(self) -> DataFrame:\n    return DataFrame([{'said': self.text}])"
    made = flow.custom(
        flows.component(body, name="Tabled", imports="from lfx.schema.dataframe import DataFrame"), "Custom-table"
    )
    flow.node(made)["node"]["outputs"][0]["types"] = ["DataFrame"]
    shown = flow.add("ChatOutput", "ChatOutput-early")
    flow.connect("ChatInput-in", "message", shown, "input_value")
    flow.connect("ChatInput-in", "message", made, "text")
    late = flow.custom(
        flows.component(
            "def work(self) -> Message:\n    return Message(text=str(self.table))", name="Late", inputs=TABLE
        ),
        "Custom-late",
    )
    flow.connect("Custom-table", "out", late, "table")
    flow.connect("Custom-ask-approve", "out", late, "text")
    out = flow.add("ChatOutput", "ChatOutput-late")
    flow.connect(late, "out", out, "input_value")
    paused = await pause(run, flow)
    outputs = {o.id: o.text or "" for o in (await go_on(run, flow, paused, "approve")).result.outputs}
    assert outputs["ChatOutput-early"] == "may I?"
    assert outputs["ChatOutput-ask-approve"] == "approve: may I?"
    assert "may I?" in outputs["ChatOutput-late"]


TABLE = 'HandleInput(name="table", display_name="Table", input_types=["DataFrame"])'


async def test_a_flow_that_has_changed_goes_on_as_it_was(run: Runner) -> None:
    old = flows.asks(name="Changes")
    paused = await pause(run, old)
    new = flows.asks(name="Changes")
    new.nodes = [node for node in new.nodes if "approve" not in node["id"]]
    new.edges = [edge for edge in new.edges if "approve" not in edge["target"] + edge["source"]]
    output = await go_on(run, flows.source(new, version="2" * 64), paused, "approve")
    assert [(o.id, o.text) for o in output.result.outputs] == [("ChatOutput-ask-approve", "approve: may I?")]


async def test_a_version_that_does_not_load_any_more_is_an_error(run: Runner) -> None:
    flow = flows.asks(name="Gone")
    paused = await pause(run, flow)
    kept = json.loads(paused.state)
    kept["checkpoint"]["flow_payload"]["nodes"][0]["data"]["node"]["template"]["code"]["value"] = (
        "import nothing_such\n"
    )
    paused.state = json.dumps(kept).encode()
    with pytest.raises(EventFault) as caught:
        await go_on(run, replace(flows.source(flow), version="3" * 64), paused, "approve")
    assert caught.value.info.code == "version_gone"


@pytest.mark.parametrize("state", [b"", b"{}", b'{"format": 99}', b'{"format": 1}', b"\xff"])
async def test_what_cannot_be_read_is_the_events_fault(run: Runner, state: bytes) -> None:
    with pytest.raises(EventFault) as caught:
        await run(flows.asks(), "hi", resume=Resume(state, "x", Decision(action_id="approve")))
    assert caught.value.info.code == "checkpoint_unreadable"


async def test_variables_are_the_resumed_runs_own_and_are_not_kept(run: Runner) -> None:
    flow = flows.asks(name="With a variable")
    code = flows.component(
        "def work(self) -> Message:\n    return Message(text=self.text + ' ' + self.key)",
        name="Keyed",
        inputs='MessageTextInput(name="key", display_name="Key")',
    )
    keyed = flow.custom(code, "Custom-keyed", key=flows.Field(value="MY_KEY", load_from_db=True))
    flow.connect("Custom-ask-approve", "out", keyed, "text")
    out = flow.add("ChatOutput", "ChatOutput-keyed")
    flow.connect(keyed, "out", out, "input_value")
    paused = await pause(run, flow, variables={"MY_KEY": "first-secret"})
    assert b"first-secret" not in paused.state
    output = await go_on(run, flow, paused, "approve", variables={"MY_KEY": "second-secret"})
    assert {o.id: o.text for o in output.result.outputs}["ChatOutput-keyed"] == "approve: may I? second-secret"


async def test_a_pause_that_nobody_can_answer_is_an_error(run: Runner) -> None:
    body = "def work(self) -> Message:\n    self.graph.request_pause()\n    return Message(text='')"
    with pytest.raises(EventFault) as caught:
        await run(flows.through(body, output=None), "may I?")
    assert caught.value.info.code == "flow_paused"


async def test_a_question_in_the_last_layer_is_heard(run: Runner) -> None:
    body = """
        def work(self) -> Message:
            asked = f"{self._id}:{self.graph.run_id}"
            decided = (getattr(self.graph, "human_input_decisions", None) or {}).get(asked)
            if decided is None:
                self.graph.request_pause(data={"request_id": asked, "allowed_decisions": ["go"]})
                return Message(text="")
            return Message(text=f"{decided['action_id']} {decided['values']}")
    """
    flow = flows.through(body, output=None)
    paused = await pause(run, flow)
    output = await run(flow, "may I?", resume=answer(paused, "go", note="é"))
    assert output.result.text == "go {'note': 'é'}"


async def test_a_flow_that_asks_does_not_run_within_another(run: Runner) -> None:
    child = flows.asks(name="Asking child")
    out = child.add("ChatOutput", "ChatOutput-out")
    child.connect("Custom-ask-approve", "out", out, "input_value")
    parent = flows.runs_flow(child)
    run.engine.set_siblings({"child": flows.source(child, route="child")})
    with pytest.raises(EventFault, match="outermost") as caught:
        await run(parent, "hi")
    assert caught.value.info.code == "flow_paused"


@pytest.mark.parametrize(("action", "called"), [("approve", "4"), ("reject", "not")])
async def test_an_agents_tool_waits_for_approval(run: Runner, action: str, called: str) -> None:
    flow = flows.careful_agent()
    run.provider.script(ToolCall("evaluate_expression", {"expression": "2+2"}), Say("done"))
    paused = await pause(run, flow, "2+2?", session_id="s1")
    assert (paused.pause.kind, paused.pause.fallback, paused.timeout) == ("tool_approval", None, None)
    assert paused.pause.allowed == ["approve", "reject", "edit"]
    (call,) = paused.pause.calls
    assert (call["name"], call["args"]) == ("evaluate_expression", {"expression": "2+2"})
    output = await run(flow, "2+2?", session_id="s1", resume=answer(paused, action, message="not allowed"))
    assert output.result.text == "done"
    assert len(run.provider.chats) == 2, "the model was asked again for what it had answered"
    told = run.provider.chats[-1].messages[-1]
    assert told["role"] == "tool"
    assert called in str(told["content"])
    assert run.history.texts("s1") == ["2+2?", "done"]


async def test_an_edited_call_is_what_the_tool_gets(run: Runner) -> None:
    flow = flows.careful_agent()
    run.provider.script(ToolCall("evaluate_expression", {"expression": "2+2"}), Say("done"))
    paused = await pause(run, flow, "2+2?")
    output = await run(flow, "2+2?", resume=answer(paused, "edit", args={"expression": "5*5"}))
    assert output.result.text == "done"
    assert "25" in str(run.provider.chats[-1].messages[-1]["content"])


async def test_an_agent_may_ask_for_each_call(run: Runner) -> None:
    flow = flows.careful_agent("approve", "reject")
    calls = [ToolCall("evaluate_expression", {"expression": f"{n}+1"}, f"call_{n}") for n in (1, 2)]
    run.provider.script(*calls, Say("both done"))
    first = await pause(run, flow, "go")
    with pytest.raises(RunPaused) as caught:
        await go_on(run, flow, first, "approve", "go")
    second = caught.value
    assert second.pause.request_id != first.pause.request_id
    assert second.pause.calls[0]["args"] == {"expression": "2+1"}
    assert (await go_on(run, flow, second, "reject", "go")).result.text == "both done"
