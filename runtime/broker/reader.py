"""Reading: new and due entries, waiting for more, and what is pending for a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runtime.broker import pages
from runtime.broker.connection import Command, Connection, Line
from runtime.broker.delivery import Delivery, Fetched
from runtime.broker.keys import RouteKeys
from runtime.broker.scripts import Call, call, refuse
from runtime.errors import BrokerError

MAX_WAITS = 64
"""Blocking reads under way at once, where one command cannot read all streams; the other streams are polled."""

UNBLOCKED = 1.0
"""Seconds that a blocking read may take to return when it is told to."""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Ask for up to ``n`` entries of a route for ``worker``.

    ``probe``: if the route is blocked, take one entry to try it with, at most once every ``probe_interval`` seconds.
    """

    keys: RouteKeys
    worker: str
    n: int
    probe: bool = False
    probe_interval: float = 30.0


class Reader:
    """Reads entries for a worker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: set[Line] = set()

    async def fetch(self, requests: Sequence[FetchRequest]) -> list[Fetched | BrokerError]:
        """Due and new entries of many routes in one round trip; an answer or the error for each, in order.

        GroupMissing: create the group and ask again. LeaseLost: renew and ask again. What a lost answer handed out is
        in ``pending``. While unread entries exist, at most half of ``n`` are due ones.
        """
        replies = await self._connection.run_all([_fetch(request) for request in requests])
        return [reply if isinstance(reply, BrokerError) else _fetched(reply) for reply in replies]

    async def glance(
        self, routes: Sequence[tuple[RouteKeys, str]], *, worker: str = ""
    ) -> list[int | BrokerError | None]:
        """Which routes are to be fetched, each given with the tail that its last fetch told; in one round trip.

        For each, in order: 0, fetch it; or in how many ms its first parked entry is due; or None, nothing is known to
        come; or the error (GroupMissing: create the group and ask again). Hands out nothing, and changes nothing.
        Without a ``worker`` and a tail it says whether anything waits there, for anybody.
        """
        keys = [key for key, _ in routes]

        def call_for(part: pages.Page) -> Call:
            names = [name for i in part for name in _names(keys[i])]
            return call("glance", names, worker, *(word for i in part for word in (keys[i].group, routes[i][1])))

        found: list[int | BrokerError | None] = [None] * len(routes)
        for part, reply in await pages.ask(self._connection, keys, call_for):
            if isinstance(reply, BrokerError):
                for i in part:
                    found[i] = reply
                continue
            for number, due_in in zip(reply[::2], reply[1::2], strict=True):
                found[part[number - 1]] = refuse(due_in) if due_in < 0 else due_in
        return found

    async def wait(self, tails: Mapping[str, str], timeout: float) -> set[str]:  # noqa: ASYNC109  it is Redis that waits
        """Wait up to ``timeout`` seconds for an entry after its tail on any stream; the streams that have one.

        Hands out nothing. Without streams it returns at once.
        """
        if not tails:
            return set()
        parts = self._parts(list(tails))
        if len(parts) == 1:
            return await self._wait_for(tails, timeout)
        waits = [
            asyncio.create_task(self._wait_for({name: tails[name] for name in part}, timeout), name="reader:wait")
            for part in parts[:MAX_WAITS]
        ]
        try:
            return await _first_news(waits)
        finally:
            await self._end(waits)

    def _parts(self, streams: Sequence[str]) -> list[list[str]]:
        """The streams in parts that one command may read: on a cluster, those of one slot."""
        return [[streams[i] for i in part] for part in pages.by_place(self._connection, streams)]

    async def _wait_for(self, tails: Mapping[str, str], seconds: float) -> set[str]:
        block = max(1, int(seconds * 1000))
        command: Command = ("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", *tails, *tails.values())
        async with self._connection.blocking(next(iter(tails))) as line:
            self._waiting.add(line)
            try:
                reply = await line.send(*command, seconds=seconds)
            finally:
                self._waiting.discard(line)
        return {stream.decode() for stream, _ in reply or ()}

    async def _end(self, waits: Sequence[asyncio.Task[set[str]]]) -> None:
        """End the blocking reads that are left, without dropping their connections where that is possible."""
        left = [wait for wait in waits if not wait.done()]
        if left and (task := asyncio.current_task()) is not None and not task.cancelling():
            with suppress(BrokerError):
                await self.unblock()
            await asyncio.wait(left, timeout=UNBLOCKED)
        for wait in left:
            wait.cancel()
        await asyncio.wait(waits)
        for wait in waits:
            if not wait.cancelled():
                wait.exception()  # told of already, or the others have brought news

    async def unblock(self) -> None:
        """Let every ``wait`` of this process return at once, with nothing; its connection lives on."""
        failed = await asyncio.gather(*(line.unblock() for line in tuple(self._waiting)), return_exceptions=True)
        for error in failed:
            if error is not None:
                raise error

    async def pending(self, keys: RouteKeys, *, worker: str, count: int = 1000) -> list[str]:
        """Ids of entries that are pending for ``worker``, lowest first."""
        (reply,) = await self.pending_on([keys], worker=worker, count=count)
        if isinstance(reply, BrokerError):
            raise reply
        return reply

    async def pending_on(
        self, routes: Sequence[RouteKeys], *, worker: str, count: int = 1000
    ) -> list[list[str] | BrokerError]:
        """The same of many routes in one round trip; the ids or the error for each, in order."""
        replies = await self._connection.pipeline(
            [("XPENDING", keys.stream, keys.group, "-", "+", count, worker) for keys in routes]
        )
        return [
            reply if isinstance(reply, BrokerError) else [entry[0].decode() for entry in reply] for reply in replies
        ]

    async def read_ids(self, keys: RouteKeys, ids: Sequence[str]) -> list[Delivery]:
        """The entries with these ids; an id whose entry is gone is acknowledged and left out."""
        replies = await self._connection.pipeline([("XRANGE", keys.stream, i, i) for i in ids])
        found, gone = [], []
        for entry_id, reply in zip(ids, replies, strict=True):
            if isinstance(reply, BrokerError):
                raise reply
            if reply:
                found.append(delivery(reply[0]))
            else:
                gone.append(entry_id)
        if gone:
            await self._connection.command("XACK", keys.stream, keys.group, *gone)
        return found


async def _first_news(waits: Sequence[asyncio.Task[set[str]]]) -> set[str]:
    """The streams of the first read that brings any. A read that fails does not end the others; all of them do."""
    left, problem = set(waits), None
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        news = set[str]()
        for wait in done:
            if (error := wait.exception()) is None:
                news |= wait.result()
            else:
                problem = error
        if news:
            return news
    if problem is not None and all(wait.exception() is not None for wait in waits):
        raise problem
    return set()


def delivery(entry: Any, *, probe: bool = False) -> Delivery:
    """A Delivery from an entry as Redis answers it: the id, and names and values in turn."""
    entry_id, flat = entry
    return Delivery(entry_id.decode(), tuple(zip(flat[::2], flat[1::2], strict=True)), probe)


def _fetch(request: FetchRequest) -> Call:
    keys = request.keys
    interval = int(request.probe_interval * 1000)
    return call("fetch", _names(keys), keys.group, request.worker, request.n, int(request.probe), interval)


def _names(keys: RouteKeys) -> list[str]:
    return [keys.stream, keys.due, keys.leases, keys.blocked]


def _fetched(reply: list[Any]) -> Fetched | BrokerError:
    if reply[0] < 0:
        return refuse(reply[0])
    _, entries, more, tail, due_in, blocked, probe = reply
    return Fetched(
        deliveries=tuple(delivery(entry, probe=bool(probe)) for entry in entries),
        more=bool(more),
        tail=tail.decode(),
        due_in=due_in if due_in >= 0 else None,
        blocked=bool(blocked),
    )
