"""A line between the supervisor and one of its processes: JSON objects, one a line, over a socket pair.

The end of the other side's process ends the line, however it went: nothing has to be polled.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

log = structlog.get_logger("headrace.worker")

Message = dict[str, Any]
Handler = Callable[[Message], Awaitable[Message | None]]

LIMIT = 64 * 1024 * 1024
"""Bytes of one line at most: a fleet of routes in one message."""


class Channel:
    """One end. ``handler`` takes what comes; what it returns answers a question."""

    def __init__(self, sock: socket.socket, handler: Handler) -> None:
        self._socket = sock
        self._handler = handler
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = asyncio.Event()

    async def open(self) -> None:
        """Begin to read."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=LIMIT)
        self._keep(asyncio.create_task(self._read(reader), name="channel:read"))

    def tell(self, message: Message) -> None:
        """Send without waiting for an answer; nothing happens once the other side is gone."""
        if self._writer is not None and not self.closed.is_set():
            self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def ask(self, message: Message) -> Message:
        """Send and wait for the answer; an empty one once the other side is gone."""
        number = next(self._numbers)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        if self.closed.is_set():
            return {}
        self._asked[number] = answer
        self.tell({**message, "ask": number})
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    async def close(self) -> None:
        """Hang up."""
        self._end()
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if (number := message.pop("answer", None)) is not None:
                    if (asked := self._asked.get(number)) is not None and not asked.done():
                        asked.set_result(message)
                else:
                    self._keep(asyncio.create_task(self._handle(message), name="channel:handle"))
        except (OSError, ValueError) as error:
            log.debug("channel.broken", error=repr(error))
        finally:
            self._end()

    async def _handle(self, message: Message) -> None:
        number = message.pop("ask", None)
        answer = await self._handler(message)
        if number is not None:
            self.tell({**(answer or {}), "answer": number})

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self) -> None:
        self.closed.set()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result({})
