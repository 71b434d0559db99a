"""What belongs to one run, where the engine's replaced functions find it. Pure.

The engine's tasks and threads inherit the context they were started in, so a context variable follows a run into all of
its components, and into no other run's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import ReferenceType

from runtime.engine.base import FlowSource
from runtime.engine.memory import ChatOverlay


@dataclass(slots=True)
class RunState:
    """One run: its variables, the chat history as it sees it, the files it may read, its own environment."""

    flow_id: str
    loop: asyncio.AbstractEventLoop
    chat: ChatOverlay
    variables: Mapping[str, str] = field(default_factory=dict)
    siblings: Mapping[str, FlowSource] = field(default_factory=dict)
    checkpoints: Any = None
    """What is kept of the run while it waits for a person (``pauses.Checkpoints``)."""
    observer: Any = None
    """The run's Observer, for the flows that this one runs."""
    environ: dict[str, str | None] = field(default_factory=dict)
    """What the run's components set in os.environ; None for what they removed."""
    table_options: dict[str, Any] = field(default_factory=dict)
    """What the run's components set of how pandas writes tables, by option."""
    clients: dict[int, ReferenceType[Any]] = field(default_factory=dict)
    """The models' clients that the run made, by id, which are taken apart after it."""


CURRENT: ContextVar[RunState | None] = ContextVar("headrace_run", default=None)
VERTEX: ContextVar[str] = ContextVar("headrace_component", default="")
"""The id of the component that is being built."""
ROOTS: ContextVar[tuple[Path, ...]] = ContextVar("headrace_file_roots", default=())
"""Directories that components may read from beside the engine's own, at load and in runs."""
