"""A cluster: which server has a key, and what to do when it has moved. Repeats nothing but what was redirected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.crc import key_slot

from runtime.broker.connection import Command, Connection, Line, Moved, Server
from runtime.broker.scripts import Argument
from runtime.errors import BrokerError, BrokerUnavailable

Host = tuple[str, int]

SLOTS = 16384

REFRESH = 0.2
"""Seconds between two looks at which server has which slot, while that is in doubt."""

_KEYLESS = frozenset({"PING", "TIME", "INFO", "CONFIG", "SCRIPT", "CLIENT", "CLUSTER", "KEYS", "ECHO", "FLUSHALL"})
_KEY_SECOND = frozenset({"XGROUP", "XINFO", "OBJECT", "MEMORY"})


class Cluster(Connection):
    """The servers of a cluster. ``seeds`` are asked first which others there are; ``make`` connects to one."""

    def __init__(self, seeds: Sequence[Host], make: Callable[[Host], Server]) -> None:
        self._seeds = tuple(seeds)
        self._make = make
        self._servers: dict[Host, Server] = {}
        self._slots: dict[int, Host] = {}
        self._primaries: tuple[Host, ...] = ()
        self._failed: dict[Host, float] = {}
        self._stale = True
        self._looked = float("-inf")
        self._looking = asyncio.Lock()

    # --- commands ---------------------------------------------------------------------------------------------------

    async def command(self, *args: Argument) -> Any:
        """One command's raw reply, from the server that has its key; from any primary where it has none."""
        host = await self._host_of(args)
        try:
            return await self._server(host).command(*args)
        except Moved as moved:
            return await self._redirected(moved, host, args)
        except BrokerUnavailable:
            self._doubt(host)
            raise

    async def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Many commands, in one round trip to each server; each one's reply, or the BrokerError it met.

        Raises BrokerUnavailable if no server answered.
        """
        hosts = [await self._host_of(command) for command in commands]
        parts = [(host, [i for i, h in enumerate(hosts) if h == host]) for host in dict.fromkeys(hosts)]
        answers = await asyncio.gather(*(self._part(host, [commands[i] for i in at]) for host, at in parts))
        replies: list[Any] = [None] * len(commands)
        for (_, at), answer in zip(parts, answers, strict=True):
            for n, i in enumerate(at):
                replies[i] = answer if isinstance(answer, BrokerUnavailable) else answer[n]
        if answers and all(isinstance(answer, BrokerUnavailable) for answer in answers):
            raise replies[0]
        for i, reply in enumerate(replies):
            if isinstance(reply, Moved):
                try:
                    replies[i] = await self._redirected(reply, hosts[i], commands[i])
                except BrokerError as error:
                    replies[i] = error
        return replies

    async def _part(self, host: Host, commands: Sequence[Command]) -> list[Any] | BrokerUnavailable:
        try:
            replies = await self._server(host).pipeline(commands)
        except BrokerUnavailable as error:
            self._doubt(host)
            return error
        if any(isinstance(reply, BrokerUnavailable) for reply in replies):
            self._stale = True
        return replies

    async def _redirected(self, moved: Moved, host: Host, command: Command) -> Any:
        """Send once more, to where the first server said; it has not run the command."""
        there = (moved.host or host[0], moved.port)
        if moved.asking:
            _, reply = await self._server(there).pipeline([("ASKING",), command])
            if isinstance(reply, BrokerError):
                raise reply
            return reply
        self._stale = True
        self._slots[moved.slot] = there
        try:
            return await self._server(there).command(*command)
        except BrokerUnavailable:
            self._doubt(there)
            raise

    @asynccontextmanager
    async def blocking(self, key: str) -> AsyncIterator[Line]:
        """A connection of its own to the server that has ``key``."""
        host = await self._host(_slot(key))
        try:
            async with self._server(host).blocking(key) as line:
                yield line
        except BrokerUnavailable:
            self._doubt(host)
            raise

    async def topology(self) -> str:
        """How many primaries there are."""
        await self._host(None)
        return f"a cluster of {len(self._primaries)} primaries"

    def place(self, key: str) -> int:
        """The key's slot: what lies in two, even of one server, no script may touch."""
        return _slot(key)

    async def close(self) -> None:
        """Close the connections to every server."""
        servers, self._servers = list(self._servers.values()), {}
        for server in servers:
            await server.close()

    # --- where things are -------------------------------------------------------------------------------------------

    async def _host_of(self, command: Command) -> Host:
        key = _key(command)
        return await self._host(_slot(key) if key is not None else None)

    async def _host(self, slot: int | None) -> Host:
        if self._stale:
            await self._look()
        if slot is None:
            # Any primary will do: the one that has not failed for the longest time.
            return min(self._primaries, key=lambda host: self._failed.get(host, 0.0))
        if (host := self._slots.get(slot)) is not None:
            return host
        self._stale = True
        raise BrokerUnavailable(f"no server of the cluster has slot {slot} now")

    def _doubt(self, host: Host) -> None:
        self._stale = True
        self._failed[host] = time.monotonic()

    async def _look(self) -> None:
        """Ask which server has which slot. What is known stays, where nobody answers."""
        async with self._looking:
            if not self._stale or (self._slots and time.monotonic() < self._looked + REFRESH):
                return
            problem: BrokerError | None = None
            known = dict.fromkeys((*self._primaries, *self._seeds))
            for host in sorted(known, key=lambda host: self._failed.get(host, 0.0)):
                try:
                    reply = await self._server(host).command("CLUSTER", "SLOTS")
                except BrokerError as error:
                    self._failed[host], problem = time.monotonic(), error
                    continue
                if reply:
                    await self._learn(reply, host)
                    return
            self._looked = time.monotonic()
            if not self._slots:
                raise problem or BrokerUnavailable("the cluster has no slots yet")

    async def _learn(self, reply: Sequence[Any], asked: Host) -> None:
        slots: dict[int, Host] = {}
        for first, last, primary, *_ in reply:
            host = primary[0].decode() if primary[0] else asked[0]  # empty: the one that was asked
            slots.update(dict.fromkeys(range(first, last + 1), (host, primary[1])))
        self._slots, self._primaries = slots, tuple(dict.fromkeys(slots.values()))
        self._looked, self._stale = time.monotonic(), False
        kept = {*self._primaries, *self._seeds}
        for host in [host for host in self._servers if host not in kept]:
            self._failed.pop(host, None)
            await self._servers.pop(host).close()

    def _server(self, host: Host) -> Server:
        if host not in self._servers:
            self._servers[host] = self._make(host)
        return self._servers[host]


def _key(command: Command) -> Argument | None:
    """The key by which a command finds its server; its other keys lie in the same slot."""
    name = str(command[0]).upper()
    if name in ("EVAL", "EVALSHA"):
        return command[3] if int(command[2]) else None
    if name == "XREAD":
        return command[[str(word).upper() for word in command].index("STREAMS") + 1]
    if name in _KEYLESS or len(command) < 2:
        return None
    return command[2] if name in _KEY_SECOND else command[1]


def _slot(key: Argument) -> int:
    raw = key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogatepass")
    return key_slot(raw, SLOTS)
