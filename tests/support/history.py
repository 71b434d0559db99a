"""A chat history in memory that does with commits what settle does with them in Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shared_models.chat import ChatCommit


class Sessions:
    """The committed messages by session."""

    def __init__(self) -> None:
        self.messages: dict[str, list[dict[str, Any]]] = {}
        self.loads = 0

    async def load(self, session: str) -> Sequence[Mapping[str, Any]]:
        """The session's messages, oldest first."""
        self.loads += 1
        return [dict(message) for message in self.messages.get(session, [])]

    def commit(self, commits: Sequence[ChatCommit]) -> None:
        """Write what a run did."""
        for commit in commits:
            kept = self.messages.setdefault(commit.session, [])
            for op in commit.ops:
                message = dict(op.message)
                if op.op == "append":
                    kept.append(message)
                elif op.op == "replace":
                    kept[:] = [message if m["id"] == message["id"] else m for m in kept]
                elif op.op == "remove":
                    kept[:] = [m for m in kept if m["id"] != message["id"]]
                else:
                    kept.clear()

    def texts(self, session: str) -> list[str]:
        """What the session's messages say."""
        return [str(message["text"]) for message in self.messages.get(session, [])]
