"""The connections of a process to Redis, with every timeout set and every error translated.

``Connection`` is what the broker's roles know; ``Server`` is one server, or the primary that a Sentinel set names. A
cluster is in ``cluster``; addresses and client options are in ``address``.
"""

from __future__ import annotations

import asyncio
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from runtime.broker.batching import Batches, drop_idle
from runtime.broker.scripts import Argument, Call
from runtime.errors import AccessDenied, BrokerError, BrokerUnavailable, GroupMissing

CONNECTIONS = 16
"""Pipelines in flight at once to one server; more wait their turn. Single commands share lines of their own."""

BLOCKING_MARGIN = 5.0
"""Seconds that a blocking read may take beyond its block time before the connection counts as dead."""

_DENIED = ("NOAUTH", "WRONGPASS")
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"

_MOMENTARY = (
    "OOM", "LOADING", "READONLY", "MISCONF", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "FAILOVER",
    "UNKILLABLE", *_DENIED,
)  # fmt: skip
"""Codes of replies that the same call may not get later: the server cannot do it now."""

_CLASSES = (
    exceptions.OutOfMemoryError, exceptions.ReadOnlyError, exceptions.ClusterDownError, exceptions.TryAgainError,
)  # fmt: skip
"""The same, where the library has a class and takes the code off the text."""

_OF_THE_LIBRARY = (exceptions.RedisError, OSError, TimeoutError)

Command = Sequence[Argument]


class Connection(ABC):
    """Runs commands and scripts. Belongs to one event loop of one process; never share it across a fork.

    Nothing is repeated here: a caller that did not get an answer repeats the call, which every script allows.
    Raises BrokerUnavailable, GroupMissing or BrokerError, never an exception of the client library's.
    """

    @abstractmethod
    async def command(self, *args: Argument) -> Any:
        """One command's raw reply."""

    @abstractmethod
    async def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Many commands in one round trip; each one's reply, or the BrokerError it met. Not a transaction.

        Raises BrokerUnavailable if none of them was answered.
        """

    @abstractmethod
    def blocking(self, key: str) -> AbstractAsyncContextManager[Line]:
        """A connection of its own, to where ``key`` is, for commands that block."""

    @abstractmethod
    async def close(self) -> None:
        """Close everything."""

    async def topology(self) -> str:
        """What it is that answers, in words."""
        return "one server"

    def place(self, key: str) -> int:
        """Where a key lies: one script may use all keys of a place, and one command read all its streams."""
        return 0

    def together(self, key: str, other: str) -> bool:
        """Whether two keys lie in one place."""
        return self.place(key) == self.place(other)

    async def run(self, call: Call) -> Any:
        """One script's reply; the script is sent whole where the server does not know it."""
        try:
            return await self.command("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args)
        except _ScriptUnknown:
            return await self.command("EVAL", call.script.source, len(call.keys), *call.keys, *call.args)

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Many scripts in one round trip (two, where the server does not know one); replies or BrokerErrors."""
        replies = await self.pipeline([("EVALSHA", c.script.sha, len(c.keys), *c.keys, *c.args) for c in calls])
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, _ScriptUnknown)]
        again = [calls[i] for i in unknown]
        sent = await self.pipeline([("EVAL", c.script.source, len(c.keys), *c.keys, *c.args) for c in again])
        for i, reply in zip(unknown, sent, strict=True):
            replies[i] = reply
        return replies


class Server(Connection):
    """One server: a pool for commands and one for blocking reads. ``also`` are clients that end with it."""

    def __init__(self, commands: Redis, blocking: Redis, *, also: Sequence[Redis] = ()) -> None:
        for client in (commands, blocking):
            # Raw replies: the library's parsers lose the order and the doubles of an entry's fields.
            client.response_callbacks.clear()
        self._commands = commands
        self._blocking = blocking
        self._also = also
        self._client_ids: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._batches = Batches(commands.connection_pool)
        # The library's own blocking pool loses a connection when its release is cancelled while it waits.
        self._turns = asyncio.Semaphore(CONNECTIONS)

    async def command(self, *args: Argument) -> Any:
        """One command's raw reply."""
        try:  # not `_translated`, whose making costs as much again: every event comes by twice
            return await self._batches.command(*args)
        except _OF_THE_LIBRARY as error:
            raise _translate(error) from error

    async def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Many commands in one round trip; each one's reply, or the BrokerError it met. Not a transaction."""
        if not commands:
            return []
        if len(commands) == 1:
            return [await self._alone(commands[0])]
        async with self._sound():
            pipe = self._commands.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            replies = await pipe.execute(raise_on_error=False)
        return [_translate(r) if isinstance(r, Exception) else r for r in replies]

    async def _alone(self, command: Command) -> Any:
        """The one command of a pipeline, as a fetch from the one busy route: with whatever else is sent now."""
        try:
            return await self._batches.command(*command, last=True)
        except exceptions.ResponseError as error:
            return _translate(error)
        except _OF_THE_LIBRARY as error:
            raise _translate(error) from error

    async def topology(self) -> str:
        """One server, or the one that a Sentinel set names."""
        return f"the primary that {len(self._also)} Sentinels name" if self._also else "one server"

    @asynccontextmanager
    async def _sound(self) -> AsyncIterator[None]:
        async with self._turns:
            try:
                with _translated():
                    yield
            except BrokerUnavailable as error:
                if isinstance(error.__cause__, exceptions.ConnectionError):
                    # The other connections have ended with this one: without this each would fail once more.
                    await drop_idle(self._commands.connection_pool)
                raise

    @asynccontextmanager
    async def blocking(self, key: str) -> AsyncIterator[Line]:
        """A connection of its own for commands that block."""
        pool = self._blocking.connection_pool
        with _translated():
            connection = await pool.get_connection()
        try:
            line = Line(connection, self)
            # Asked once for each socket: a connection that was made anew has another.
            socket = connection._writer
            if socket not in self._client_ids:
                self._client_ids[socket] = await line.send("CLIENT", "ID", seconds=0)
            line.client_id = self._client_ids[socket]
            yield line
        finally:
            await pool.release(connection)

    async def close(self) -> None:
        """Close both pools."""
        await self._batches.close()
        for client in (self._commands, self._blocking, *self._also):
            await client.aclose(close_connection_pool=True)


class Line:
    """One connection, for one command after the other."""

    def __init__(self, connection: AbstractConnection, server: Server) -> None:
        self._connection = connection
        self._server = server
        self.client_id = 0
        """The server's name for this connection."""

    async def send(self, *args: Argument, seconds: float) -> Any:
        """One command's raw reply; the command may block for ``seconds``."""
        with _translated():
            # A timeout or a cancellation ends the connection: a late reply can never answer the next command.
            async with asyncio.timeout(seconds + BLOCKING_MARGIN):
                await self._connection.send_command(*args)
                return await self._connection.read_response()

    async def unblock(self) -> None:
        """Let the command that blocks on this connection return at once, with nothing; the connection lives on."""
        await self._server.command("CLIENT", "UNBLOCK", self.client_id)


class Moved(BrokerUnavailable):
    """Another server of the cluster has the slot; ``asking``: for this once, while the slot is on its way."""

    def __init__(self, message: str, *, slot: int, host: str, port: int, asking: bool) -> None:
        super().__init__(message)
        self.slot, self.host, self.port, self.asking = slot, host, port, asking


class _ScriptUnknown(BrokerError):
    """The server does not know the script."""


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except _OF_THE_LIBRARY as error:
        raise _translate(error) from error


def _translate(error: Exception) -> BrokerError:
    text = str(error) or type(error).__name__
    if isinstance(error, exceptions.NoScriptError):
        return _ScriptUnknown(text)
    if isinstance(error, exceptions.AskError):
        return _moved(error, text)
    if isinstance(error, exceptions.DataError):
        return BrokerError(f"an argument cannot be sent to Redis: {text}")
    if text.startswith(("NOGROUP", "UNBLOCKED")):
        return GroupMissing(text)
    if not isinstance(error, exceptions.ResponseError) or isinstance(error, _CLASSES) or text.startswith(_MOMENTARY):
        return _unavailable(error, text)
    return BrokerError(f"Redis refused a command: {text}")


def _unavailable(error: Exception, text: str) -> BrokerUnavailable:
    if isinstance(error, exceptions.AuthenticationError) or text.startswith(_DENIED):
        return AccessDenied(f"Redis does not let this user in: {text}")
    if _UNTRUSTED in text:
        return AccessDenied(f"Redis cannot be trusted: {text}")
    return BrokerUnavailable(f"Redis cannot be used now: {text}")


def _moved(error: exceptions.AskError, text: str) -> Moved:
    asking = not isinstance(error, exceptions.MovedError)
    message = f"another server has this slot: {text}"
    return Moved(message, slot=error.slot_id, host=error.host, port=error.port, asking=asking)
