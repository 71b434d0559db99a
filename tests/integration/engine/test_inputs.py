"""What an event's payload gives a flow."""

from __future__ import annotations

import json

import pytest

from runtime.errors import EventFault
from tests.integration.engine.conftest import Runner, ids
from tests.support import flows


async def test_a_chat_input_gets_the_text(run: Runner) -> None:
    output = await run(flows.hello(), "hi there")
    assert output.result.text == "hi there"
    assert ids(output.result.outputs) == ["ChatOutput-out"]


async def test_a15_a_text_input_shows_the_events_value_only(run: Runner) -> None:
    for text in ("one", "two", ""):
        output = await run(flows.text_hello(default="saved default"), text)
        assert output.result.outputs[0].text == text


async def test_text_with_backslashes_and_quotes_arrives_unchanged(run: Runner) -> None:
    text = 'C:\\new\\table "quoted" {braces} \u00e9\U0001f600 \\n'
    assert await run.text(flows.hello(), text) == text


async def test_a_payload_without_an_input_value_is_given_as_its_json_text(run: Runner) -> None:
    output = await run(flows.hello(), payload={"order": 7, "lines": ["a"], "session_id": "s"})
    assert json.loads(output.result.text or "") == {"order": 7, "lines": ["a"]}


async def test_input_text_overrides_the_payload(run: Runner) -> None:
    assert await run.text(flows.hello(), "from the payload", input_text="from the spec") == "from the spec"


def two_inputs() -> flows.Flow:
    flow = flows.Flow("Two inputs")
    body = "def work(self) -> Message:\n    return Message(text=f'{self.text}|{self.other}')"
    first = flow.add("TextInput", "TextInput-a", name="Question", input_value="saved a")
    second = flow.add("TextInput", "TextInput-b", name="Answer", input_value="saved b")
    both = flow.custom(
        flows.component(body, inputs='MessageTextInput(name="other", display_name="Other")'), "Custom-both"
    )
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(first, "text", both, "text")
    flow.connect(second, "text", both, "other")
    flow.connect(both, "out", out, "input_value")
    return flow


async def test_several_inputs_are_addressed_by_id_and_by_name(run: Runner) -> None:
    given = {"inputs": {"TextInput-a": "x", "Answer": "y"}}
    assert await run.text(two_inputs(), payload=given) == "x|y"


async def test_an_input_that_is_not_addressed_keeps_its_saved_value(run: Runner) -> None:
    assert await run.text(two_inputs(), payload={"inputs": {"Answer": "y"}}) == "saved a|y"


async def test_an_input_value_fills_those_that_are_not_addressed(run: Runner) -> None:
    given = {"input_value": "all", "inputs": {"Answer": "y"}}
    assert await run.text(two_inputs(), payload=given) == "all|y"


async def test_an_unknown_input_is_the_events_fault_and_names_the_nearest(run: Runner) -> None:
    with pytest.raises(EventFault, match="did you mean 'Answer'") as caught:
        await run(two_inputs(), payload={"inputs": {"Anser": "y"}})
    assert caught.value.info.code == "input_unknown"


async def test_c2_a_webhook_gets_the_whole_payload(run: Runner) -> None:
    payload = {"any": "data", "session_id": "mine", "tweaks": {"x": 1}, "text": 'a "quoted"\nline'}
    output = await run(flows.webhook(), payload=payload)
    text = (output.result.text or "").removeprefix("```json\n").removesuffix("\n```")
    assert json.loads(text) == payload


async def test_a_flow_without_inputs_runs(run: Runner) -> None:
    flow = flows.Flow("No input")
    body = "def work(self) -> Message:\n    return Message(text='made here')"
    made = flow.custom(flows.component(body), "Custom-it")
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(made, "out", out, "input_value")
    assert await run.text(flow, payload={"anything": 1}) == "made here"


@pytest.mark.parametrize("payload", [{"inputs": ["x"]}, {"tweaks": "x"}, {"files": 3}, {"files": {"File": [1]}}])
async def test_control_keys_of_the_wrong_form_are_the_events_fault(run: Runner, payload: dict[str, object]) -> None:
    with pytest.raises(EventFault) as caught:
        await run(flows.hello(), payload={"input_value": "x", **payload})
    assert caught.value.info.code == "payload_invalid"
