"""Chat memory: without a database, committed by settle, scoped to its session."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from runtime.errors import RunFailed
from shared_models.chat import ChatOp
from tests.integration.engine.conftest import Runner
from tests.support import flows
from tests.support.provider import Say, Transcript


def remembering() -> flows.Flow:
    """A flow that answers with the session's history as text."""
    flow = flows.Flow("Remembers")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    memory = flow.add("Memory", "Memory-it")
    out = flow.add("ChatOutput", "ChatOutput-out")
    both = flow.custom(
        flows.component(
            "def work(self) -> Message:\n    return Message(text=f'[{self.history}] {self.text}')",
            inputs='MessageTextInput(name="history", display_name="History")',
        ),
        "Custom-both",
    )
    flow.connect(chat_in, "message", both, "text")
    flow.connect(memory, "messages_text", both, "history")
    flow.connect(both, "out", out, "input_value")
    return flow


async def test_a1_an_agent_with_a_session_answers_without_a_database(run: Runner) -> None:
    run.provider.script(Say("hello, I am here"))
    output = await run(flows.agent(), "hi", session_id="s1")
    assert output.result.text == "hello, I am here"
    assert run.history.texts("s1") == ["hi", "hello, I am here"]


async def test_a_flow_that_only_stores_its_messages_does_not_read_a_long_session(run: Runner) -> None:
    assert await run.text(flows.hello(), "hi", session_id="s1") is not None
    assert len(run.history.texts("s1")) == 2
    assert run.history.loads == 0


async def test_a1_an_agent_without_a_session_answers_too(run: Runner) -> None:
    run.provider.script(Say("still here"))
    output = await run(flows.agent(), "hi")
    assert output.result.text == "still here"
    assert output.chat == ()


async def test_a1_an_agent_sees_what_was_said_before(run: Runner) -> None:
    run.provider.script(Say("Hi Ada"), Transcript())
    await run(flows.agent(), "my name is Ada", session_id="s1")
    told = json.loads(await run.text(flows.agent(), "what is my name?", session_id="s1"))
    assert [m for m in told if m[0] != "system"] == [
        ["user", "my name is Ada"],
        ["assistant", "Hi Ada"],
        ["user", "what is my name?"],
    ]


async def test_b3_another_session_sees_nothing_of_it(run: Runner) -> None:
    run.provider.script(Say("Hi Ada"), Transcript())
    await run(flows.agent(), "my name is Ada", session_id="s1")
    told = await run.text(flows.agent(), "what is my name?", session_id="s2")
    assert "Ada" not in told


async def test_b3_two_sessions_in_parallel_do_not_mix(run: Runner) -> None:
    flow = flows.agent(name="Parallel sessions")
    await run.load(flow)
    for turn in range(3):
        await asyncio.gather(*(run(flow, f"{s} says {turn}", session_id=f"session-{s}") for s in "abcd"))
    for s in "abcd":
        texts = run.history.texts(f"session-{s}")
        assert texts == [said for t in range(3) for said in (f"{s} says {t}", f"echo: {s} says {t}")]
    last = {seen.texts("user")[-1]: seen.texts("user") for seen in run.provider.chats if len(seen.texts("user")) == 3}
    assert last == {f"{s} says 2": [f"{s} says {t}" for t in range(3)] for s in "abcd"}


async def test_a_memory_component_reads_the_history(run: Runner) -> None:
    assert await run.text(remembering(), "one", session_id="s") in ("[User: one] one", "[] one")
    again = await run.text(remembering(), "two", session_id="s")
    assert "User: one" in again
    assert again.endswith("] two")


async def test_a_failed_attempt_leaves_nothing_and_a_retry_does_not_double(run: Runner) -> None:
    body = """
        def work(self) -> Message:
            if self.text == "fail":
                raise RuntimeError("as asked")
            return Message(text="ok")
    """
    flow = flows.through(body)
    with pytest.raises(RunFailed):
        await run(flow, "fail", session_id="s")
    assert run.history.messages == {}
    await run(flow, "fine", session_id="s")
    assert run.history.texts("s") == ["fine", "ok"]


async def test_messages_are_strict_json_and_a_streamed_answer_is_whole(run: Runner) -> None:
    run.provider.script(Say("a streamed answer"))
    output = await run(flows.llm(stream=True), "hi", session_id="s", stream=True)
    (commit,) = output.chat
    assert json.loads(json.dumps([dict(op.message) for op in commit.ops], allow_nan=False))
    assert [(op.op, op.message["text"]) for op in commit.ops] == [("append", "hi"), ("append", "a streamed answer")]


async def test_blocking_memory_functions_work_from_a_component(run: Runner) -> None:
    body = """
        def work(self) -> Message:
            from lfx.memory import delete_messages, get_messages, store_message
            seen = [m.text for m in get_messages(session_id=self.graph.session_id, order="ASC")]
            store_message(Message(text="kept", sender="Machine", sender_name="AI", session_id=self.graph.session_id))
            own = [m.text for m in get_messages(session_id=self.graph.session_id, order="ASC")]
            return Message(text=repr((seen, own)))
    """
    flow = flows.through(body, output=None)
    assert await run.text(flow, "one", session_id="s") == "(['one'], ['one', 'kept'])"
    assert await run.text(flow, "two", session_id="s") == "(['one', 'kept', 'two'], ['one', 'kept', 'two', 'kept'])"


async def test_a_component_may_delete_and_change_messages(run: Runner) -> None:
    body = """
        async def work(self) -> Message:
            from lfx.memory import adelete_messages, aget_messages, astore_message, aupdate_messages, delete_message
            session = self.graph.session_id
            if self.text == "clear":
                await adelete_messages(session_id=session)
                return Message(text="cleared")
            stored = (await astore_message(Message(text="x", sender="AI", sender_name="AI", session_id=session)))[0]
            stored.text = "changed"
            await aupdate_messages(stored)
            first = (await aget_messages(session_id=session, order="ASC"))[0]
            await delete_message(first.id)
            return Message(text=repr([m.text for m in await aget_messages(session_id=session, order="ASC")]))
    """
    flow = flows.through(body, output=None)
    assert await run.text(flow, "one", session_id="s") == "['changed']"
    assert run.history.texts("s") == ["changed"]
    output = await run(flow, "clear", session_id="s")
    assert output.chat[0].ops == (ChatOp("clear"),)
    assert run.history.texts("s") == []


async def test_a_commit_of_the_run_is_small(run: Runner) -> None:
    output = await run(flows.hello(), "hi", session_id="s")
    assert [(commit.session, [op.op for op in commit.ops]) for commit in output.chat] == [("s", ["append", "append"])]
    message: dict[str, Any] = dict(output.chat[0].ops[0].message)
    assert {"id", "text", "sender", "sender_name", "session_id", "timestamp"} <= message.keys()
