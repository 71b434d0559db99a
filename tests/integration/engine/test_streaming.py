"""What a watched run tells while it goes on."""

from __future__ import annotations

from shared_models.result import RunEventType
from tests.integration.engine.conftest import Runner
from tests.support import flows
from tests.support.provider import Say


async def test_components_are_told_as_they_start_and_end(run: Runner) -> None:
    await run(flows.two_outputs(), "hi")
    started = [data["component_id"] for data in run.told.of(RunEventType.COMPONENT_STARTED)]
    ended = [data["component_id"] for data in run.told.of(RunEventType.COMPONENT_ENDED)]
    assert sorted(started) == sorted(ended) == ["ChatInput-in", "ChatOutput-first", "ChatOutput-second", "Custom-up"]
    assert started[0] == "ChatInput-in"


async def test_a_watched_model_gives_tokens_that_make_up_its_answer(run: Runner) -> None:
    for session in (None, "s"):
        run.told.events.clear()
        run.provider.script(Say("one two three"))
        output = await run(flows.llm(), "hi", stream=True, session_id=session)
        tokens = [data["text"] for data in run.told.of(RunEventType.TOKEN)]
        assert "".join(tokens) == output.result.text == "one two three"
        assert len(tokens) >= 3
        assert output.result.outputs[0].data["session_id"] == session
        texts = [data["text"] for data in run.told.of(RunEventType.MESSAGE)]
        assert texts[-1] == "one two three"
        assert len(texts) == len(set(texts))


async def test_a_watched_agent_gives_tokens(run: Runner) -> None:
    run.provider.script(Say("one two three"))
    output = await run(flows.agent(), "hi", stream=True, session_id="s")
    assert output.result.text == "one two three"
    assert run.told.of(RunEventType.TOKEN)


async def test_a_run_that_is_not_watched_gives_none(run: Runner) -> None:
    await run(flows.llm(), "hi", session_id="s")
    assert not run.told.of(RunEventType.TOKEN)
    assert run.provider.chats[0].body.get("stream") in (None, False)


async def test_a_streamed_run_without_a_session_remembers_nothing(run: Runner) -> None:
    output = await run(flows.llm(), "hi", stream=True)
    assert output.chat == ()


async def test_secrets_are_masked_in_tokens_and_messages(run: Runner) -> None:
    run.provider.script(Say("the key is sk-canary-123 indeed"))
    await run(flows.llm(), "hi", stream=True, variables={"OPENAI_COMPATIBLE_API_KEY": "sk-canary-123"})
    told = run.told.of(RunEventType.TOKEN) + run.told.of(RunEventType.MESSAGE)
    assert told
    assert "sk-canary-123" not in str(told)
