"""The two connections of a process to Redis, with every timeout set and every error translated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import hiredis
from redis import exceptions
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, UnixDomainSocketConnection, parse_url
from redis.asyncio.connection import Connection as TcpConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from runtime.broker.scripts import Argument, Call
from runtime.errors import BrokerError, BrokerUnavailable, GroupMissing
from runtime.settings import RedisSettings

CONNECTIONS = 16
"""Commands in flight at once; more wait their turn. Each takes tens of microseconds on the server."""

BLOCKING_MARGIN = 5.0
"""Seconds that a blocking read may take beyond its block time before the connection counts as dead."""

_MOMENTARY = (
    "OOM", "LOADING", "READONLY", "MISCONF", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "FAILOVER",
    "NOAUTH", "WRONGPASS", "MOVED", "ASK", "UNKILLABLE",
)  # fmt: skip
"""Codes of replies that the same call may not get later: the server cannot do it now."""

Command = Sequence[Argument]


class Connection:
    """Runs commands and scripts. Belongs to one event loop of one process; never share it across a fork.

    Nothing is repeated here: a caller that did not get an answer repeats the call, which every script allows.
    Raises BrokerUnavailable, GroupMissing or BrokerError, never an exception of the client library's.
    """

    def __init__(self, commands: Redis, blocking: Redis) -> None:
        for client in (commands, blocking):
            # Raw replies: the library's parsers lose the order and the doubles of an entry's fields.
            client.response_callbacks.clear()
        self._commands = commands
        self._blocking = blocking
        # The library's own blocking pool loses a connection when its release is cancelled while it waits.
        self._turns = asyncio.Semaphore(CONNECTIONS)

    @classmethod
    def to(cls, url: str, settings: RedisSettings) -> Connection:
        """A connection to ``url``; connects when first used. Raises BrokerError if it is not a Redis URL."""
        try:
            return cls(
                _client(url, settings, read_timeout=settings.command_timeout), _client(url, settings, read_timeout=None)
            )
        except ValueError as error:
            # The URL itself is not told: it may hold a password.
            raise BrokerError("this is not a Redis URL; write redis://[user:password@]host:port/0") from error

    async def command(self, *args: Argument) -> Any:
        """One command's raw reply."""
        async with self._sound():
            return await self._commands.execute_command(*args)  # type: ignore[no-untyped-call]

    async def run(self, call: Call) -> Any:
        """One script's reply; the script is sent whole where the server does not know it."""
        try:
            return await self.command("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args)
        except _ScriptUnknown:
            return await self.command("EVAL", call.script.source, len(call.keys), *call.keys, *call.args)

    async def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Many commands in one round trip; each one's reply, or the BrokerError it met. Not a transaction."""
        if not commands:
            return []
        async with self._sound():
            pipe = self._commands.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            replies = await pipe.execute(raise_on_error=False)
        return [_translate(r) if isinstance(r, Exception) else r for r in replies]

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Many scripts in one round trip (two, where the server does not know one); replies or BrokerErrors."""
        replies = await self.pipeline([("EVALSHA", c.script.sha, len(c.keys), *c.keys, *c.args) for c in calls])
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, _ScriptUnknown)]
        again = [calls[i] for i in unknown]
        sent = await self.pipeline([("EVAL", c.script.source, len(c.keys), *c.keys, *c.args) for c in again])
        for i, reply in zip(unknown, sent, strict=True):
            replies[i] = reply
        return replies

    @asynccontextmanager
    async def _sound(self) -> AsyncIterator[None]:
        async with self._turns:
            try:
                with _translated():
                    yield
            except BrokerUnavailable as error:
                if isinstance(error.__cause__, exceptions.ConnectionError):
                    # The other connections have ended with this one: without this each would fail once more.
                    await self._commands.connection_pool.disconnect(inuse_connections=False)
                raise

    @asynccontextmanager
    async def blocking(self) -> AsyncIterator[Line]:
        """A connection of its own for commands that block."""
        pool = self._blocking.connection_pool
        with _translated():
            connection = await pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            line = Line(connection)
            line.client_id = await line.send("CLIENT", "ID", seconds=0)
            yield line
        finally:
            await pool.release(connection)

    async def close(self) -> None:
        """Close both."""
        for client in (self._commands, self._blocking):
            await client.aclose(close_connection_pool=True)


class Line:
    """One connection, for one command after the other."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self.client_id = 0
        """The server's name for this connection."""

    async def send(self, *args: Argument, seconds: float) -> Any:
        """One command's raw reply; the command may block for ``seconds``."""
        with _translated():
            # A timeout or a cancellation ends the connection: a late reply can never answer the next command.
            async with asyncio.timeout(seconds + BLOCKING_MARGIN):
                await self._connection.send_command(*args)
                return await self._connection.read_response()


class _Packing(AbstractConnection):
    """Packs commands with hiredis, in a tenth of the library's own time: a run sends some hundred words."""

    def pack_command(self, *args: Any) -> list[bytes]:
        try:
            return [hiredis.pack_command(args)]
        except (TypeError, ValueError, hiredis.HiredisError):
            # What it does not take (a lone surrogate) the library may; else the library says what is wrong.
            packed: list[bytes] = super().pack_command(*args)
            return packed


def _packing(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    return type(f"Packing{kind.__name__}", (_Packing, kind), {})


class _ScriptUnknown(BrokerError):
    """The server does not know the script."""


def _client(url: str, settings: RedisSettings, *, read_timeout: float | None) -> Redis:
    options: dict[str, Any] = dict(parse_url(url))
    # After the URL's own options, which could ask for replies of another shape or for repeats.
    options.update(
        connection_class=_packing(options.get("connection_class", TcpConnection)),
        protocol=2,
        decode_responses=False,
        encoding_errors="surrogatepass",
        socket_timeout=read_timeout,
        socket_connect_timeout=settings.connect_timeout,
        socket_keepalive=True,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 0),
        retry_on_timeout=False,
        retry_on_error=[],
    )
    if issubclass(options["connection_class"], UnixDomainSocketConnection):
        del options["socket_keepalive"]
    return Redis.from_pool(ConnectionPool(**options))


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (exceptions.RedisError, OSError, TimeoutError) as error:
        raise _translate(error) from error


def _translate(error: Exception) -> BrokerError:
    text = str(error) or type(error).__name__
    if isinstance(error, exceptions.NoScriptError):
        return _ScriptUnknown(text)
    if isinstance(error, exceptions.DataError):
        return BrokerError(f"an argument cannot be sent to Redis: {text}")
    if not isinstance(error, exceptions.ResponseError) or isinstance(error, exceptions.OutOfMemoryError):
        return BrokerUnavailable(f"Redis cannot be used now: {text}")
    if text.startswith(("NOGROUP", "UNBLOCKED")):
        return GroupMissing(text)
    if isinstance(error, exceptions.ReadOnlyError) or text.startswith(_MOMENTARY):
        return BrokerUnavailable(f"Redis cannot be used now: {text}")
    return BrokerError(f"Redis refused a command: {text}")
