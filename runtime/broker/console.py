"""An operator's own line to the server: one command and its reply, as the server sent it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from runtime.broker.address import single
from runtime.errors import BrokerUnavailable


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The server refused a command, in its own words."""

    text: str


Reply = bytes | int | float | None | ErrorReply | list["Reply"]


class Console:
    """One connection, used for one command after the other. A reply is waited for as long as it takes."""

    def __init__(self, pool: ConnectionPool, connection: AbstractConnection) -> None:
        self._pool = pool
        self._connection = connection

    @classmethod
    async def open(cls, url: str, *, timeout: float) -> Console:  # noqa: ASYNC109  seconds for the connection alone
        """Connect. Raises BrokerUnavailable."""
        try:
            pool = single(url, timeout=timeout)
            return cls(pool, await pool.get_connection())  # type: ignore[no-untyped-call]
        except (RedisError, OSError, ValueError) as error:
            raise BrokerUnavailable(f"Redis cannot be reached: {error}") from error

    async def send(self, command: Sequence[str | bytes]) -> Reply:
        """One command and its reply. Raises BrokerUnavailable."""
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
