"""Chat components saved by Langflow 1.0 and 1.1, whose code calls what is a coroutine today. See ``legacy``."""

from __future__ import annotations

import asyncio
from typing import Any

from runtime.engine.legacy import OldChat

TIMEOUT = 60.0
"""Seconds that such a component's thread waits for the run's loop to store its message."""


def make_blocking(component: Any, kind: OldChat, loop: asyncio.AbstractEventLoop) -> None:
    """Give one component instance the blocking method that its saved code calls. It runs in a thread, so may wait."""
    send = component.send_message

    def blocking(message: Any, *args: Any, **kwargs: Any) -> Any:
        stored = asyncio.run_coroutine_threadsafe(send(message), loop).result(TIMEOUT)
        return [stored] if kind is OldChat.STORES else stored

    component.__dict__[kind.value] = blocking
