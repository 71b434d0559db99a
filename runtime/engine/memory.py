"""A run's view of chat history: what is committed, and over it what the run itself did. Pure.

Nothing is written while a run goes on. Its changes are handed to settle as ChatCommits, so a failed attempt leaves
nothing and a retry does not double anything.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runtime.engine.base import ChatHistory
from shared_models.chat import ChatCommit, ChatOp

Record = dict[str, Any]

LOAD_TIMEOUT = 15.0
"""Seconds that a component in a thread waits for the history to be read on the run's loop."""


class ChatOverlay:
    """The sessions of one run. Used from the run's loop and from its threads."""

    def __init__(self, history: ChatHistory, loop: asyncio.AbstractEventLoop, *, session: str | None) -> None:
        self._history = history
        self._loop = loop
        self._session = session
        self._committed: dict[str, list[Record]] = {}
        self._ops: dict[str, list[ChatOp]] = {}
        self._lock = threading.Lock()

    @property
    def enabled(self) -> bool:
        """Whether the event named a session: without one, nothing is remembered."""
        return bool(self._session)

    async def messages(self, session: str) -> list[Record]:
        """The session's messages, oldest first, as this run sees them."""
        await self.ensure(session)
        return self.seen(session)

    async def ensure(self, session: str) -> None:
        """Read the committed history once. May be called from a loop other than the run's."""
        if session in self._committed or not self.enabled:
            return
        if asyncio.get_running_loop() is self._loop:
            loaded = await self._history.load(session)
        else:
            asked = asyncio.run_coroutine_threadsafe(_load(self._history, session), self._loop)
            loaded = await asyncio.wait_for(asyncio.wrap_future(asked), LOAD_TIMEOUT)
        with self._lock:
            self._committed.setdefault(session, [dict(message) for message in loaded])

    async def has(self, session: str, message_id: str) -> bool:
        """Whether a session has a message. What was said before is read only where this run has not said it itself."""
        if not any(m.get("id") == message_id for m in self.seen(session)):
            await self.ensure(session)
        return any(m.get("id") == message_id for m in self.seen(session))

    def seen(self, session: str) -> list[Record]:
        """What is known of a session now, without reading anything."""
        with self._lock:
            messages = [dict(message) for message in self._committed.get(session, ())]
            for op in self._ops.get(session, ()):
                messages = _apply(messages, op)
            return messages

    def put(self, session: str, message: Mapping[str, Any]) -> Record:
        """Append a message, or replace the one that has its id. The message with an id."""
        record = dict(message)
        record["id"] = str(record.get("id") or uuid.uuid4())
        known = any(m.get("id") == record["id"] for m in self.seen(session))
        self._do(session, ChatOp("replace" if known else "append", record))
        return record

    async def find(self, message_id: str) -> str | None:
        """The session that holds a message, among the run's own and those it has touched."""
        for session in dict.fromkeys([*filter(None, [self._session]), *self.sessions()]):
            if await self.has(session, message_id):
                return session
        return None

    def remove(self, session: str, ids: Iterable[str]) -> None:
        """Remove messages by id."""
        for message_id in ids:
            self._do(session, ChatOp("remove", {"id": message_id}))

    def clear(self, session: str) -> None:
        """Forget a session's messages, committed and own."""
        with self._lock:
            self._ops[session] = [ChatOp("clear")]

    def sessions(self) -> list[str]:
        """The sessions this run has touched."""
        return list(dict.fromkeys([*self._ops, *self._committed]))

    def restore(self, commits: Iterable[ChatCommit]) -> None:
        """Take over what the run did before it waited."""
        with self._lock:
            self._ops.update((commit.session, list(commit.ops)) for commit in commits)

    def commits(self) -> tuple[ChatCommit, ...]:
        """What the run did, for settle."""
        with self._lock:
            return tuple(ChatCommit(session, tuple(ops)) for session, ops in self._ops.items() if ops)

    def _do(self, session: str, op: ChatOp) -> None:
        if not self.enabled:
            return
        with self._lock:
            self._ops[session] = fold([*self._ops.get(session, ()), op])


async def _load(history: ChatHistory, session: str) -> Sequence[Mapping[str, Any]]:
    return await history.load(session)


def fold(ops: list[ChatOp]) -> list[ChatOp]:
    """The same changes in fewer operations: what the run appended itself is changed or dropped in place."""
    last = ops[-1]
    wanted = last.message.get("id")
    own = next((i for i, op in enumerate(ops[:-1]) if op.op == "append" and op.message.get("id") == wanted), None)
    if own is None or last.op not in ("replace", "remove"):
        return ops
    kept = ops[:-1]
    kept[own : own + 1] = [ChatOp("append", last.message)] if last.op == "replace" else []
    return kept


def _apply(messages: list[Record], op: ChatOp) -> list[Record]:
    match op.op:
        case "append":
            return [*messages, dict(op.message)]
        case "replace":
            return [dict(op.message) if m.get("id") == op.message.get("id") else m for m in messages]
        case "remove":
            return [m for m in messages if m.get("id") != op.message.get("id")]
        case _:
            return []


def select(
    messages: Iterable[Record], *, wanted: Mapping[str, Any], newest_first: bool, limit: int | None
) -> list[Record]:
    """The messages whose fields are as ``wanted`` (None and empty match anything), the newest ``limit`` of them.

    Error messages are left out, as the engine's own store does.
    """
    picked = [
        m
        for m in messages
        if not m.get("error")
        and all(not value or str(m.get(name) or "") == str(value) for name, value in wanted.items())
    ]
    if newest_first:
        picked.reverse()
    return picked[:limit] if limit else picked
