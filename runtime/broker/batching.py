"""Commands of the same moment, sent together.

With many runs in flight, many commands are wanted at once. One write and one read for all of them costs a fraction of
one each, here and on the server. Nothing waits for company: what is wanted in one turn of the loop is sent in the next,
and what comes while that is under way goes as soon as it is answered, or over a line of its own if that takes long.

A line keeps its connection for a moment: whoever was answered wants the next thing soon, and taking a connection from
the pool anew costs several turns of the loop, for which all in flight would wait.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from typing import Any

import hiredis
from redis import exceptions
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection

from runtime.broker.scripts import Argument

LINES = 4
"""Batches under way at once."""

PATIENCE = 0.001
"""Seconds that commands wait for a line that is busy before another is used: some round trips to a near server."""

HOLD = 0.005
"""Seconds that a line keeps its connection when nothing waits."""

MAX_COMMANDS = 16
MAX_BYTES = 256 * 1024
"""Where a batch ends. A command that is larger goes alone."""

_CLOSED = "the connection was closed"

Waiting = tuple[tuple[Argument, ...], asyncio.Future[Any], bool]
"""A command, who waits for its reply, and whether it is to be the last of its batch."""


class Batches:
    """Sends commands over the connections of a pool. Belongs to one event loop.

    Raises what the client library raises, to each command for itself; a connection that ends, to all that are under way
    on it.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._waiting: deque[Waiting] = deque()
        self._lines: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        """Lines that nothing waits for; each goes on when its future is done."""
        self._woken: asyncio.Future[None] | None = None
        """Of a line that was told to go on and has not yet: it takes what else is wanted in this turn."""
        self._due: asyncio.Handle | None = None
        self._closed = False

    async def command(self, *args: Argument, last: bool = False) -> Any:
        """One command's raw reply. Where its caller is cancelled, it may be carried out or not.

        ``last``: its reply may be large, so nothing is sent behind it that would wait for all of that.
        """
        if self._closed:
            raise exceptions.ConnectionError(_CLOSED)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((args, reply, last))
        self._open_line(loop)
        return await reply

    async def close(self) -> None:
        """End what is under way; its callers get a ConnectionError."""
        self._closed = True
        if self._due is not None:
            self._due.cancel()
        self._fail_waiting(exceptions.ConnectionError(_CLOSED))
        self._wake_all()
        # What is read ends with its connection. One that is just being made is not to be cancelled: it would be lost.
        await self._pool.disconnect()
        if self._lines:
            await asyncio.wait(self._lines)

    def _open_line(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._woken is not None:
            return
        if self._idle:
            self._woken = self._idle.pop()
            _give(self._woken, None)
            return
        if self._due is not None or len(self._lines) >= LINES:
            return
        # Not in the caller's context: a run's would be kept for as long as the connection.
        context = contextvars.Context()
        if self._lines:
            self._due = loop.call_later(PATIENCE, self._start, loop, context=context)
        else:
            self._due = loop.call_soon(self._start, loop, context=context)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = None
        if self._waiting:
            line = loop.create_task(self._send_all(), name="redis:batches")
            self._lines.add(line)
            line.add_done_callback(self._ended)

    def _ended(self, line: asyncio.Task[None]) -> None:
        self._lines.discard(line)
        if self._waiting:  # its connection has ended
            self._open_line(line.get_loop())

    async def _send_all(self) -> None:
        """Send what waits, and what comes meanwhile, over one connection."""
        try:
            connection = await self._pool.get_connection()
        except Exception as error:  # noqa: BLE001  whatever it is, those who wait are told
            self._fail_waiting(_known(error))
            return
        try:
            while self._waiting:
                batch, packed = self._take(connection)
                if batch and not await self._exchange(connection, batch, packed):
                    self._wake_all()  # their connections have most likely ended as well
                    return
                if self._waiting and len(self._lines) < LINES:
                    self._open_line(asyncio.get_running_loop())
                if not self._waiting and not await self._wanted(connection):
                    return
        finally:
            await self._pool.release(connection)

    async def _wanted(self, connection: AbstractConnection) -> bool:
        """Wait a moment for the next command. False where the connection has ended: then another is to be taken."""
        loop = asyncio.get_running_loop()
        idle: asyncio.Future[None] = loop.create_future()
        self._idle.append(idle)
        timer = loop.call_later(HOLD, _give, idle, None)
        try:
            await idle
        finally:
            timer.cancel()
            if self._woken is idle:
                self._woken = None
            if idle in self._idle:
                self._idle.remove(idle)
        if _is_quiet(connection):
            return True
        await connection.disconnect(nowait=True)
        return False

    def _wake_all(self) -> None:
        while self._idle:
            _give(self._idle.pop(), None)

    def _take(self, connection: AbstractConnection) -> tuple[list[asyncio.Future[Any]], bytes]:
        taken: list[tuple[bytes, asyncio.Future[Any]]] = []
        final: list[tuple[bytes, asyncio.Future[Any]]] = []
        size = 0
        while self._waiting and len(taken) < MAX_COMMANDS and size < MAX_BYTES:
            args, reply, last = self._waiting.popleft()
            if reply.done():  # its caller was cancelled
                continue
            try:
                packed = b"".join(connection.pack_command(*args))
            except Exception as error:  # noqa: BLE001  told to the one whose command it is
                reply.set_exception(exceptions.DataError(str(error)))
                continue
            if (size and size + len(packed) > MAX_BYTES) or (last and final):
                self._waiting.appendleft((args, reply, last))
                break
            (final if last else taken).append((packed, reply))
            size += len(packed)
        taken += final
        return [reply for _, reply in taken], b"".join(packed for packed, _ in taken)

    async def _exchange(self, connection: AbstractConnection, batch: list[asyncio.Future[Any]], packed: bytes) -> bool:
        """Send a batch and read its replies. False where the connection has ended."""
        answered = 0
        try:
            await connection.send_packed_command(packed)
            for reply in batch:
                try:
                    answer = await connection.read_response()
                except exceptions.ResponseError as error:
                    answer = error
                answered += 1
                _give(reply, answer)
        except Exception as error:  # noqa: BLE001  whatever it is, those who wait are told
            for reply in batch[answered:]:
                _give(reply, _known(error))
            await connection.disconnect(nowait=True)  # a reply that was not read must never answer another command
            if isinstance(error, exceptions.ConnectionError):
                # The other connections have ended with this one: without this each would fail once more.
                await drop_idle(self._pool)
            return False
        except asyncio.CancelledError:
            for reply in batch[answered:]:
                _give(reply, exceptions.ConnectionError(_CLOSED))
            raise
        return True

    def _fail_waiting(self, error: Exception) -> None:
        while self._waiting:
            _give(self._waiting.popleft()[1], error)


def _is_quiet(connection: AbstractConnection) -> bool:
    """Whether a connection is there, and nothing has come over it that nobody asked for."""
    reader: Any = connection._reader
    if reader is None or reader.at_eof() or reader.exception() is not None or reader._buffer:
        return False
    parsed = getattr(connection._parser, "_reader", None)
    return not (isinstance(parsed, hiredis.Reader) and parsed.has_data())


async def drop_idle(pool: ConnectionPool) -> None:
    """End the connections of a pool that nobody uses.

    Each is taken first, as any other user takes one: the pool's own way ends some under who takes them meanwhile, who
    then has a connection without a socket.
    """
    taken = [pool.get_available_connection() for _ in range(len(pool._available_connections))]

    async def end(connection: AbstractConnection) -> None:
        try:
            await connection.disconnect(nowait=True)
        finally:
            await pool.release(connection)

    await asyncio.gather(*(end(connection) for connection in taken), return_exceptions=True)


def _known(error: Exception) -> Exception:
    """An error that the connection's users expect."""
    if isinstance(error, exceptions.RedisError | OSError | TimeoutError):
        return error
    return exceptions.ConnectionError(f"the connection is not to be used: {type(error).__name__}: {error}")


def _give(reply: asyncio.Future[Any], answer: Any) -> None:
    if reply.done():
        return
    if isinstance(answer, Exception):
        reply.set_exception(answer)
    else:
        reply.set_result(answer)
