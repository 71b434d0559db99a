"""Redis addresses: one server, a Sentinel set or a cluster, with or without TLS; and the connection to each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import hiredis
from redis import exceptions
from redis._parsers.hiredis import NOT_ENOUGH_DATA, _AsyncHiredisParser
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.asyncio.connection import Connection as TcpConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo

from runtime.broker.cluster import Cluster
from runtime.broker.connection import Connection, Server
from runtime.errors import BrokerError
from runtime.settings import RedisSettings

Host = tuple[str, int]

SCHEMES = (
    "redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
)  # fmt: skip

FORMS = (
    "redis://[user:password@]host:port/0, redis+sentinel://[user:password@]host:port,host:port/service/0 or "
    "redis+cluster://[user:password@]host:port,host:port (rediss for TLS), or unix:///path"
)
"""What a user may write."""

PORTS = {"sentinel": 26379}
"""Where none is written; else 6379."""

_DRIVER = DriverInfo()
"""What a server is told of its client. Left to itself each connection reads its library's version from a file: 2 ms."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address taken apart. ``kind``: server, sentinel or cluster. ``options`` are the client library's."""

    kind: str
    hosts: tuple[Host, ...]
    service: str
    options: Mapping[str, Any]

    @property
    def tls(self) -> bool:
        """Whether it is reached through TLS."""
        return self.options.get("connection_class") is SSLConnection


def parse(url: str) -> Address:
    """Take an address apart. Raises BrokerError, which does not tell the URL: it may hold a password."""
    try:
        return _parse(url)
    except ValueError as error:
        raise BrokerError(f"this is not a Redis URL; write {FORMS}") from error


def _parse(url: str) -> Address:
    parts = urlsplit(url)
    base, _, kind = parts.scheme.partition("+")
    if parts.scheme not in SCHEMES or not url.lower().startswith(f"{parts.scheme}://"):
        raise ValueError("the scheme is unknown")
    if not kind:
        return Address("server", (), "", _sound(dict(parse_url(url))))
    hosts = _hosts(parts, PORTS.get(kind, 6379))
    path = [unquote(part) for part in parts.path.split("/") if part]
    service = path.pop(0) if kind == "sentinel" and path else ""
    database = path.pop(0) if path else "0"
    if path or (kind == "sentinel" and not service) or (kind == "cluster" and database != "0"):
        raise ValueError("the path is wrong")
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    query = f"?{parts.query}" if parts.query else ""
    options = dict(parse_url(f"{base}://{user}localhost/{int(database)}{query}"))
    del options["host"]
    return Address(kind, hosts, service, _sound(options))


def _hosts(parts: SplitResult, port: int) -> tuple[Host, ...]:
    hosts = []
    for text in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{text}")
        if not one.hostname:
            raise ValueError("a host is missing")
        hosts.append((one.hostname, one.port or port))
    return tuple(hosts)


def _sound(options: dict[str, Any]) -> dict[str, Any]:
    kind: type[AbstractConnection] = options.get("connection_class", TcpConnection)
    known = {k: v for k, v in options.items() if k not in ("connection_class", *_OF_POOL, *_OF_SENTINEL)}
    known |= _driver(known)
    try:
        kind(**known)  # connects to nothing; it knows its options
    except Exception as error:
        raise ValueError("an option is unknown or wrong") from error
    return options


_OF_POOL = ("max_connections", "timeout")
_OF_SENTINEL = ("sentinel_username", "sentinel_password")


def connect(url: str, settings: RedisSettings) -> Connection:
    """A connection to ``url``; connects when first used. Raises BrokerError if it is not a Redis URL."""
    address = parse(url)
    if address.kind == "sentinel":
        return _primary(address, settings)
    if address.kind == "cluster":
        return Cluster(address.hosts, lambda host: _server({**address.options, **_place(host)}, settings))
    return _server(address.options, settings)


def _place(host: Host) -> dict[str, Any]:
    return {"host": host[0], "port": host[1]}


def _server(options: Mapping[str, Any], settings: RedisSettings) -> Server:
    def client(read_timeout: float | None) -> Redis:
        return Redis.from_pool(ConnectionPool(**_client_options(options, settings, read_timeout)))

    return Server(client(settings.command_timeout), client(None))


def _primary(address: Address, settings: RedisSettings) -> Server:
    """The server that a Sentinel set names as the primary, asked for each time a connection is made."""
    manager, managed = _sentinels(address, settings)

    def client(read_timeout: float | None) -> Redis:
        options = _client_options({**_own(address), "connection_class": managed}, settings, read_timeout)
        return Redis.from_pool(SentinelConnectionPool(address.service, manager, **options))

    return Server(client(settings.command_timeout), client(None), also=manager.sentinels)


def _own(address: Address) -> dict[str, Any]:
    return {name: value for name, value in address.options.items() if name not in _OF_SENTINEL}


def _sentinels(address: Address, settings: RedisSettings) -> tuple[_Sentinels, type[AbstractConnection]]:
    options = {name: value for name, value in _own(address).items() if name not in ("username", "password", "db")}
    for name in _OF_SENTINEL:
        if name in address.options:
            options[name.removeprefix("sentinel_")] = address.options[name]
    asking = _client_options(options, settings, settings.connect_timeout)
    # The library's own packing: its two-word commands to a Sentinel are one word each to ours.
    asking["connection_class"] = address.options.get("connection_class", TcpConnection)
    manager = _Sentinels([Redis.from_pool(ConnectionPool(**{**asking, **_place(host)})) for host in address.hosts])
    return manager, SentinelManagedSSLConnection if address.tls else SentinelManagedConnection


def _client_options(options: Mapping[str, Any], settings: RedisSettings, read_timeout: float | None) -> dict[str, Any]:
    kind = options.get("connection_class", TcpConnection)
    # After the URL's own options, which could ask for replies of another shape or for repeats.
    made: dict[str, Any] = dict(
        options,
        connection_class=_quick(kind),
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
        **_driver(options),
    )
    if issubclass(kind, UnixDomainSocketConnection):
        del made["socket_keepalive"]
    return made


def _driver(options: Mapping[str, Any]) -> dict[str, Any]:
    return {} if {"driver_info", "lib_name", "lib_version"} & options.keys() else {"driver_info": _DRIVER}


class _Sentinels(Sentinel):
    """Asks first those that have not failed lately. The library's own reorders its list while others walk over it."""

    def __init__(self, sentinels: Sequence[Redis]) -> None:
        super().__init__([])  # type: ignore[no-untyped-call]  # redis-py gives it no types
        self.sentinels = list(sentinels)
        self._failed: dict[Redis, float] = {}

    async def discover_master(self, service_name: str) -> Host:
        for sentinel in sorted(self.sentinels, key=lambda sentinel: self._failed.get(sentinel, 0.0)):
            try:
                states = await sentinel.sentinel_masters()
            except (exceptions.ConnectionError, exceptions.TimeoutError):
                self._failed[sentinel] = time.monotonic()
                continue
            state = states.get(service_name)
            if state and self.check_master_state(state, service_name):
                return state["ip"], state["port"]
            self._failed[sentinel] = time.monotonic()
        raise MasterNotFoundError(f"no Sentinel that answers knows a primary {service_name!r} that is up")


class _Quick(AbstractConnection):
    """Packs commands with hiredis, in a tenth of the library's own time: a run sends some hundred words.

    And what was received is read without a timer: the library starts one for each reply.
    """

    def pack_command(self, *args: Any) -> list[bytes]:
        try:
            return [hiredis.pack_command(args)]
        except (TypeError, ValueError, hiredis.HiredisError):
            # What it does not take (a lone surrogate) the library may; else the library says what is wrong.
            packed: list[bytes] = super().pack_command(*args)
            return packed

    async def read_response(self, *args: Any, **options: Any) -> Any:
        if args or options or (reply := await self._received()) is NOT_ENOUGH_DATA:
            return await super().read_response(*args, **options)
        first = reply[0] if isinstance(reply, list) and reply else reply
        if isinstance(first, exceptions.ConnectionError):  # the server has no more to say here: as the library does
            await self.disconnect(nowait=True)
            raise first
        if isinstance(reply, exceptions.ReadOnlyError) and isinstance(self, SentinelManagedConnection):
            await self.disconnect(nowait=True)  # it was demoted: the Sentinels are asked again, as the library does
            raise exceptions.ConnectionError("the server is no primary any more") from reply
        if isinstance(reply, exceptions.ResponseError):
            raise reply
        return reply

    async def _received(self) -> Any:
        """A reply that has come with an earlier one, as most of a batch do."""
        if not isinstance(self._parser, _AsyncHiredisParser) or not self._parser._connected:
            return NOT_ENOUGH_DATA
        reader: Any = self._parser._reader
        try:
            return reader.gets()
        except (hiredis.HiredisError, exceptions.InvalidResponse):
            return NOT_ENOUGH_DATA  # the library's own reading meets it again, and ends the connection
        except Exception:
            await self.disconnect(nowait=True)  # an error that cannot be read: who knows what comes after it
            raise


@cache
def _quick(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    return type(f"Quick{kind.__name__}", (_Quick, kind), {})


def single(url: str, *, timeout: float, host: Host | None = None) -> ConnectionPool:
    """Connections to one server: the primary of a Sentinel set, of a cluster ``host``, or the first that its URL names.

    ``timeout``: seconds to connect; a reply is waited for as long as it takes. Raises BrokerError.
    """
    address, settings = parse(url), RedisSettings(connect_timeout=timeout)
    if address.kind == "sentinel":
        manager, managed = _sentinels(address, settings)
        options = _client_options({**_own(address), "connection_class": managed}, settings, None)
        pool: ConnectionPool = SentinelConnectionPool(address.service, manager, **options)
        return pool
    place = _place(host or address.hosts[0]) if address.hosts else {}
    return ConnectionPool(**_client_options({**address.options, **place}, settings, None))
