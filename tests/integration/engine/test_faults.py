"""Whose fault a failed run is, and what is told of it."""

from __future__ import annotations

import asyncio
import time

import pytest

from runtime.errors import EventFault, Fault, RouteFault, RunFailed
from shared_models.dead_letter import ErrorInfo
from shared_models.result import RunEventType
from tests.integration.engine.conftest import Runner
from tests.support import flows
from tests.support.provider import Hang, Say, Status, ToolCall

NO_RETRY = {"x-should-retry": "false"}
"""Tells the client library not to try by itself, which would only take time."""


async def fault(run: Runner, flow: flows.Flow, **more: object) -> tuple[Fault, ErrorInfo]:
    with pytest.raises(Fault) as caught:
        await run(flow, "hi", **more)
    return caught.value, caught.value.info


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (Status(401, "invalid_api_key"), RouteFault, "credential_refused"),
        (Status(403, "forbidden"), RouteFault, "credential_refused"),
        (Status(404, "model_not_found"), RouteFault, "model_unknown"),
        (Status(429, "insufficient_quota", headers=NO_RETRY), RouteFault, "quota_exhausted"),
        (Status(429, "rate_limit_exceeded", headers={**NO_RETRY, "retry-after": "7"}), RunFailed, "rate_limited"),
        (Status(400, "context_length_exceeded"), EventFault, "provider_rejected"),
        (Status(422, "unprocessable"), EventFault, "provider_rejected"),
        (Status(500, headers=NO_RETRY), RunFailed, "provider_failed"),
        (Status(503, headers=NO_RETRY), RunFailed, "provider_failed"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Status) else None,
)
async def test_c1_what_the_provider_answers(run: Runner, answer: Status, kind: type[Fault], code: str) -> None:
    run.provider.default = answer
    caught, info = await fault(run, flows.llm())
    assert (type(caught), info.code, info.provider_status) == (kind, code, answer.status)
    assert (info.component_id, info.component_name) == ("LanguageModelComponent-llm", "Language Model")
    assert info.retryable is (kind is RunFailed)
    assert info.retry_after == (7.0 if "retry-after" in answer.headers else None)
    assert info.exception_type
    assert info.traceback and len(info.traceback.encode()) <= 8 * 1024


async def test_c1_the_same_from_within_an_agent(run: Runner) -> None:
    run.provider.default = Status(401, "invalid_api_key")
    caught, info = await fault(run, flows.agent())
    assert (type(caught), info.code, info.provider_status) == (RouteFault, "credential_refused", 401)
    assert info.component_id == "Agent-it"


async def test_a_credential_that_the_event_brought_is_the_events_fault(run: Runner) -> None:
    run.provider.default = Status(401, "invalid_api_key")
    given = {"OPENAI_COMPATIBLE_API_KEY": "sk-of-the-event"}
    caught, info = await fault(run, flows.llm(), variables=given, brought=frozenset(given))
    assert (type(caught), info.code) == (EventFault, "credential_refused")


async def test_a_provider_that_is_not_there_is_tried_again_later(run: Runner) -> None:
    caught, info = await fault(run, flows.llm(), variables={"OPENAI_COMPATIBLE_BASE_URL": "http://127.0.0.2:9/v1"})
    assert (type(caught), info.code, info.provider_status) == (RunFailed, "connection_failed", None)


async def test_c1_a_hanging_provider_is_cancelled_with_the_run(run: Runner) -> None:
    run.provider.default = Hang()
    loaded = await run.load(flows.llm())
    assert loaded
    task = asyncio.create_task(run(flows.llm(), "hi"))
    await asyncio.to_thread(run.provider.wait_for, 1)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 5
    await asyncio.to_thread(run.provider.wait_for, 1, what=lambda stub: stub.cancelled)
    assert run.history.messages == {}


async def test_a_timeout_around_a_run_works(run: Runner) -> None:
    run.provider.default = Hang()
    await run.load(flows.llm())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await run(flows.llm(), "hi")


async def test_a_python_error_of_component_code_is_retried_and_told(run: Runner) -> None:
    body = """
        def work(self) -> Message:
            table = {"a": 1}
            return Message(text=table["missing key"])
    """
    caught, info = await fault(run, flows.through(body))
    assert (type(caught), info.code, info.retryable) == (RunFailed, "component_failed", True)
    assert (info.component_id, info.component_name) == ("Custom-it", "Custom")
    assert info.message == "component 'Custom' (Custom-it): 'missing key'"
    assert info.exception_type == "KeyError"
    assert 'table["missing key"]' in (info.traceback or "") or "in work" in (info.traceback or "")
    assert [data["component_id"] for data in run.told.of(RunEventType.COMPONENT_FAILED)] == ["Custom-it"]


async def test_a_value_error_of_component_code_is_retried_too(run: Runner) -> None:
    caught, info = await fault(run, flows.through("def work(self) -> Message:\n    raise ValueError('bad luck')"))
    assert (type(caught), info.exception_type) == (RunFailed, "ValueError")
    assert info.message.endswith(": bad luck")


async def test_a_package_that_is_imported_late_and_absent_is_the_routes_fault(run: Runner) -> None:
    body = "def work(self) -> Message:\n    import no_such_package_here\n    return Message(text='')"
    caught, info = await fault(run, flows.through(body))
    assert (type(caught), info.code) == (RouteFault, "package_missing")
    assert "no_such_package_here" in info.message


async def test_a_key_that_a_component_asks_for_in_its_own_way(run: Runner) -> None:
    body = "def work(self) -> Message:\n    raise ValueError('Acme API key is required to call Acme')"
    caught, info = await fault(run, flows.through(body))
    assert (type(caught), info.code) == (RouteFault, "credential_missing")


@pytest.mark.parametrize("call", ["sys.exit(3)", "exit(3)"])
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_a_component_that_exits_does_not_take_the_worker_along(run: Runner, call: str, kind: str) -> None:
    caught, info = await fault(run, flows.through(f"{kind} work(self) -> Message:\n    import sys\n    {call}"))
    assert type(caught) is RunFailed
    assert "called sys.exit(3)" in info.message
    assert await run.text(flows.hello(), "alive") == "alive"


async def test_a_failed_component_beside_others_is_named(run: Runner) -> None:
    flow = flows.two_outputs()
    flow.name = "One of two fails"
    bad = flow.custom(flows.component("def work(self) -> Message:\n    raise RuntimeError('mine')"), "Custom-bad")
    out = flow.add("ChatOutput", "ChatOutput-bad")
    flow.connect("ChatInput-in", "message", bad, "text")
    flow.connect(bad, "out", out, "input_value")
    _, info = await fault(run, flow)
    assert info.component_id == "Custom-bad"


async def test_c11_a_tool_call_with_wrong_arguments_ends(run: Runner) -> None:
    flow = flows.agent("CalculatorComponent", add_calculator_tool=False)
    run.provider.script(
        ToolCall("evaluate_expression", {"no such argument": 1}), ToolCall("no_such_tool", {}), Say("I could not do it")
    )
    try:
        output = await run(flow, "what is 1+1?", session_id="s")
    except Fault as caught:
        assert caught.info.component_id == "Agent-it"
    else:
        assert output.result.text == "I could not do it"


async def test_c11_arguments_that_are_no_json_end_too(run: Runner) -> None:
    flow = flows.agent("CalculatorComponent", add_calculator_tool=False)
    run.provider.script(ToolCall("evaluate_expression", "{not json"), Say("sorry"))
    try:
        output = await run(flow, "what is 1+1?")
    except Fault as caught:
        assert caught.info.component_id == "Agent-it"
    else:
        assert output.result.text == "sorry"


async def test_an_agent_uses_a_tool(run: Runner) -> None:
    flow = flows.agent("CalculatorComponent", add_calculator_tool=False)
    run.provider.script(ToolCall("evaluate_expression", {"expression": "6*7"}), Say("it is 42"))
    assert await run.text(flow, "what is 6*7?") == "it is 42"
    tools = [tool["function"]["name"] for tool in run.provider.chats[0].body["tools"]]
    assert "evaluate_expression" in tools
    assert any("42" in text for text in run.provider.chats[1].texts("tool"))


async def test_an_agent_whose_model_never_stops_asking_ends(run: Runner) -> None:
    flow = flows.agent("CalculatorComponent", add_calculator_tool=False, max_iterations=2)
    run.provider.default = ToolCall("evaluate_expression", {"expression": "1+1"})
    try:
        await run(flow, "loop")
    except Fault as caught:
        assert caught.info.component_id == "Agent-it"
    assert len(run.provider.chats) < 20
