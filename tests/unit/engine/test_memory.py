"""A run's view of chat history."""

from __future__ import annotations

import asyncio
from typing import Any

from runtime.engine.memory import ChatOverlay, fold, select
from shared_models.chat import ChatOp
from tests.support.history import Sessions


async def overlay(*texts: str, session: str | None = "s") -> tuple[ChatOverlay, Sessions]:
    sessions = Sessions()
    sessions.messages["s"] = [{"id": f"c{n}", "text": text} for n, text in enumerate(texts)]
    return ChatOverlay(sessions, asyncio.get_running_loop(), session=session), sessions


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["text"] for message in messages]


async def test_a_run_sees_what_is_committed_and_what_it_did() -> None:
    chat, sessions = await overlay("old")
    await chat.ensure("s")
    stored = chat.put("s", {"text": "new"})
    assert stored["id"]
    assert texts(await chat.messages("s")) == ["old", "new"]
    chat.put("s", {**stored, "text": "changed"})
    chat.put("s", {"id": "c0", "text": "older"})
    assert texts(await chat.messages("s")) == ["older", "changed"]
    assert sessions.loads == 1
    (commit,) = chat.commits()
    assert [(op.op, op.message.get("text")) for op in commit.ops] == [("append", "changed"), ("replace", "older")]
    sessions.commit([commit])
    assert sessions.texts("s") == ["older", "changed"]


async def test_what_is_appended_and_removed_again_is_not_committed() -> None:
    chat, _ = await overlay()
    await chat.ensure("s")
    stored = chat.put("s", {"text": "oops"})
    chat.remove("s", [stored["id"]])
    assert chat.commits() == ()
    assert await chat.messages("s") == []


async def test_removing_and_clearing() -> None:
    chat, sessions = await overlay("a", "b")
    await chat.ensure("s")
    chat.remove("s", ["c0"])
    assert texts(await chat.messages("s")) == ["b"]
    chat.clear("s")
    chat.put("s", {"text": "fresh"})
    assert texts(await chat.messages("s")) == ["fresh"]
    (commit,) = chat.commits()
    assert [op.op for op in commit.ops] == ["clear", "append"]
    sessions.commit([commit])
    assert sessions.texts("s") == ["fresh"]


async def test_without_a_session_nothing_is_read_or_kept() -> None:
    chat, sessions = await overlay("a", session=None)
    chat.put("s", {"text": "x"})
    assert await chat.messages("s") == []
    assert chat.commits() == ()
    assert sessions.loads == 0


async def test_a_thread_with_a_loop_of_its_own_reads_on_the_runs_loop() -> None:
    chat, _ = await overlay("a")
    assert texts(await asyncio.to_thread(lambda: asyncio.run(chat.messages("s")))) == ["a"]


async def test_writes_from_many_threads_are_all_kept() -> None:
    chat, _ = await overlay()
    await chat.ensure("s")
    await asyncio.gather(*(asyncio.to_thread(chat.put, "s", {"text": str(n)}) for n in range(50)))
    assert sorted(texts(await chat.messages("s")), key=int) == [str(n) for n in range(50)]


async def test_a_message_is_found_by_its_id() -> None:
    chat, _ = await overlay("a")
    assert await chat.find("c0") == "s"
    assert await chat.find("nobody") is None
    stored = chat.put("other", {"text": "mine"})
    assert await chat.find(stored["id"]) == "other"


async def test_what_a_run_said_itself_is_known_without_reading_the_session() -> None:
    chat, sessions = await overlay("a")
    stored = chat.put("s", {"text": "mine"})
    assert await chat.has("s", stored["id"])
    assert sessions.loads == 0
    assert await chat.has("s", "c0")
    assert not await chat.has("s", "nobody")
    assert sessions.loads == 1


def test_folding_leaves_others_alone() -> None:
    ops = [ChatOp("append", {"id": "1"}), ChatOp("append", {"id": "2"}), ChatOp("remove", {"id": "9"})]
    assert fold(list(ops)) == ops


def test_selecting() -> None:
    messages = [
        {"id": "1", "sender": "User", "text": "a"},
        {"id": "2", "sender": "Machine", "text": "b"},
        {"id": "3", "sender": "User", "text": "c", "error": True},
        {"id": "4", "sender": "User", "text": "d"},
    ]
    wanted = {"sender": "User", "context_id": None}
    assert texts(select(messages, wanted=wanted, newest_first=False, limit=None)) == ["a", "d"]
    assert texts(select(messages, wanted={}, newest_first=True, limit=2)) == ["d", "b"]
