"""Changes to a session's chat history, as a run made them and settle commits them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ChatOp:
    """One change to a session's chat history: append, replace (by the message's id), remove (by id) or clear."""

    op: str
    message: Mapping[str, Any] = field(default_factory=dict)
    """The message as strict JSON with at least ``id``; empty for clear; only ``id`` for remove."""


@dataclass(frozen=True, slots=True)
class ChatCommit:
    """What a run did to one session's history, in order; settle writes it, a failed attempt drops it."""

    session: str
    ops: tuple[ChatOp, ...]
