"""An operator's own line to the server: one command and its reply, as the server sent it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from runtime.broker.address import parse, single
from runtime.errors import BrokerUnavailable


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The server refused a command, in its own words."""

    text: str


Reply = bytes | int | float | None | ErrorReply | list["Reply"]


REDIRECTIONS = 8
"""How often one command is sent on to another server of a cluster at most."""


class Console:
    """One connection, used for one command after the other. A reply is waited for as long as it takes.

    Of a cluster it goes to the server that has a command's key, once another has said which that is.
    """

    def __init__(self, url: str, timeout: float, pool: ConnectionPool, connection: AbstractConnection) -> None:
        self._url = url
        self._timeout = timeout
        self._pool = pool
        self._connection = connection
        self._follows = parse(url).kind == "cluster"

    @classmethod
    async def open(cls, url: str, *, timeout: float) -> Console:  # noqa: ASYNC109  seconds for the connection alone
        """Connect. Raises BrokerUnavailable."""
        return cls(url, timeout, *await _connect(url, timeout))

    async def send(self, command: Sequence[str | bytes]) -> Reply:
        """One command and its reply. Raises BrokerUnavailable."""
        reply = await self._ask(command)
        for _ in range(REDIRECTIONS):
            if not self._follows or not isinstance(reply, ErrorReply) or (host := _elsewhere(reply.text)) is None:
                break
            await self.close()
            self._pool, self._connection = await _connect(self._url, self._timeout, host)
            if reply.text.startswith("ASK "):
                await self._ask(["ASKING"])
            reply = await self._ask(command)
        return reply

    async def _ask(self, command: Sequence[str | bytes]) -> Reply:
        try:
            await self._connection.send_command(*command)
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            raise BrokerUnavailable(f"the connection to Redis ended: {error}") from error
        return await self.receive()

    async def receive(self) -> Reply:
        """The next thing that the server says: a reply, or a line of MONITOR or of a subscription."""
        try:
            return _reply(await self._connection.read_response(disable_decoding=True))
        except (RedisError, OSError) as error:
            if (refusal := _refusal(error)) is not None:
                return refusal
            raise BrokerUnavailable(f"the connection to Redis ended: {error}") from error

    async def close(self) -> None:
        """Give the connection back."""
        await self._pool.disconnect()


async def _connect(
    url: str, seconds: float, host: tuple[str, int] | None = None
) -> tuple[ConnectionPool, AbstractConnection]:
    try:
        pool = single(url, timeout=seconds, host=host)
        return pool, await pool.get_connection()
    except (RedisError, OSError, ValueError) as error:
        raise BrokerUnavailable(f"Redis cannot be reached: {error}") from error


def _elsewhere(text: str) -> tuple[str, int] | None:
    """Where a redirection points; None: it is none, or it names no host."""
    found = re.fullmatch(r"(?:MOVED|ASK) \d+ (.+):(\d+)", text)
    return (found[1], int(found[2])) if found else None


def _reply(value: object) -> Reply:
    if isinstance(value, list):
        return [_reply(item) for item in value]
    if isinstance(value, Exception):
        return _refusal(value) or ErrorReply(str(value))
    if value is None or isinstance(value, bytes | int | float):
        return value
    return str(value).encode()


def _refusal(error: Exception) -> ErrorReply | None:
    """The server's own words, whose first one the library takes off where it knows it; None for no words of its."""
    if code := getattr(error, "status_code", None):
        return ErrorReply(f"{code} {error}")
    return ErrorReply(str(error)) if isinstance(error, ResponseError) else None
