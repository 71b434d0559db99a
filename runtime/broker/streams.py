"""Streams as a whole: their groups, how much waits in them, and whether their route is blocked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from runtime.broker.connection import Connection
from runtime.broker.keys import RouteKeys
from runtime.broker.records import number, show, text, texts
from runtime.broker.scripts import call, refuse
from runtime.errors import BrokerError, BrokerUnavailable
from shared_models.dead_letter import ErrorInfo

COUNT_BOUND = 1000
"""Entries that are counted one by one where Redis' own number cannot be trusted."""

QUIET = 600.0
"""Seconds after which a consumer that is no worker's does not count as one that reads."""


class Retired(IntEnum):
    """What retire says. READ, USED: nothing was done; a worker, or somebody else's consumer, reads with it."""

    READ = 0
    DONE = 1
    USED = 2


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """How a route's stream stands.

    ``waiting``: unread, and parked ones that are due; None where it is not known (nothing of the route is, or Redis has
    lost count of very many). ``running``: in a worker's hands. ``delayed``: parked until later. ``oldest_waiting_ms``:
    when the oldest waiting entry was sent, ms since the epoch; None where none waits. ``consumers``: workers with a
    lease.
    """

    length: int = 0
    waiting: int | None = 0
    running: int = 0
    delayed: int = 0
    dead: int = 0
    oldest_waiting_ms: int | None = None
    consumers: int = 0


@dataclass(frozen=True, slots=True)
class GroupCount:
    """A consumer group of a stream, whoever's. ``entries``: unread by it or pending in it, at most so many."""

    name: str
    entries: int


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """Why a route is blocked; times in ms since the epoch."""

    code: str
    reason: str
    component_id: str | None
    since: int
    next_probe: int


class Streams:
    """Commands on whole streams."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def ensure_group(self, keys: RouteKeys) -> None:
        """Create the group at 0, and the stream with it, unless it exists. A stream that is read does not expire."""
        try:
            await self._connection.command("XGROUP", "CREATE", keys.stream, keys.group, "0", "MKSTREAM")
        except BrokerError as error:
            if "BUSYGROUP" not in error.message:
                raise
        await self._connection.command("PERSIST", keys.stream)

    async def groups(self, streams: Sequence[str]) -> dict[str, list[GroupCount]]:
        """The consumer groups of each stream; none where there is no stream of that name."""
        asked = [command for stream in streams for command in (("XINFO", "GROUPS", stream), ("XLEN", stream))]
        replies = await self._connection.pipeline(asked)
        found: dict[str, list[GroupCount]] = {}
        for stream, groups, length in zip(streams, replies[::2], replies[1::2], strict=True):
            for reply in (groups, length):
                if isinstance(reply, BrokerUnavailable):
                    raise reply
            known = [] if isinstance(groups, BrokerError) else groups
            found[stream] = [_group_count(flat, length) for flat in known]
        return found

    async def retire(self, keys: RouteKeys, *, quiet: float = QUIET) -> Retired:
        """Give up a group and what is kept for it. ``quiet``: seconds for which a stranger must have done nothing.

        Entries that only this group needed are deleted by the next audit of another. Raises GroupMissing where there
        was no such group.
        """
        names = [keys.stream, keys.due, keys.leases, keys.obits, keys.blocked, keys.runs]
        (code,) = await self._connection.run(call("retire", names, keys.group, int(quiet * 1000)))
        if code < 0:
            raise refuse(code)
        return Retired(code)

    async def thin(self, streams: Sequence[str], *, life: float) -> list[int | BrokerError]:
        """Delete entries older than ``life`` seconds, of each stream that no group reads, in one round trip.

        How many there were, or the error, for each, in order.
        """
        replies = await self._connection.run_all([call("thin", [stream], int(life * 1000)) for stream in streams])
        return [reply if isinstance(reply, BrokerError) else int(reply[0]) for reply in replies]

    async def counts(self, keys: Sequence[RouteKeys], dead_letters: Sequence[str]) -> list[StreamCounts]:
        """How each route stands, in order; ``dead_letters`` names each one's dead-letter stream.

        A key that is not a stream counts nothing; of a route that Redis refuses to count nothing is known. Cheap
        whatever the streams' length.
        """
        asked = [call("count", [k.stream, k.due, k.leases], k.group, COUNT_BOUND) for k in keys]
        counted = await self._connection.run_all(asked)
        lengths = await self._connection.pipeline([("XLEN", stream) for stream in dead_letters])
        counts = []
        for reply, dead in zip(counted, lengths, strict=True):
            for answer in (reply, dead):
                if isinstance(answer, BrokerUnavailable):
                    raise answer
            dead_count = 0 if isinstance(dead, BrokerError) else dead
            if isinstance(reply, BrokerError):
                counts.append(StreamCounts(waiting=None, dead=dead_count))
                continue
            length, waiting, running, delayed, consumers, oldest = reply
            counts.append(StreamCounts(length, waiting, running, delayed, dead_count, oldest or None, consumers))
        return counts

    async def block(self, keys: RouteKeys, *, error: ErrorInfo, probe_interval: float) -> bool:
        """Block the route; the first probe is due in ``probe_interval`` seconds. True if it was not blocked before.

        While it is blocked, ``fetch`` gives out one entry per probe interval and ``begin`` parks all others.
        """
        args = (error.code, error.message, error.component_id or "", int(probe_interval * 1000))
        (new,) = await self._connection.run(call("block", [keys.blocked], *args))
        return bool(new)

    async def unblock(self, keys: RouteKeys) -> bool:
        """Let the route's entries run again. True if it was blocked."""
        return bool(await self._connection.command("DEL", keys.blocked))

    async def blocked(self, keys: Sequence[RouteKeys]) -> list[BlockInfo | None]:
        """Why each route is blocked, in order; None where it is not."""
        replies = await self._connection.pipeline([("HGETALL", k.blocked) for k in keys])
        found: list[BlockInfo | None] = []
        for reply in replies:
            if isinstance(reply, BrokerError):
                raise reply
            found.append(_block_info(texts(reply)) if reply else None)
        return found

    async def probe_now(self, keys: RouteKeys) -> None:
        """Let the next fetch with ``probe`` have its probe at once. Nothing if the route is not blocked."""
        await self._connection.run(call("probe", [keys.blocked]))


def _group_count(flat: Sequence[bytes | int | None], length: int) -> GroupCount:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    name, lag, pending = fields[b"name"], fields.get(b"lag"), fields[b"pending"]
    unread = lag if isinstance(lag, int) else length  # after a deletion Redis may not know
    return GroupCount(
        show(name) if isinstance(name, bytes) else "", unread + (pending if isinstance(pending, int) else 0)
    )


def _block_info(fields: dict[str, str]) -> BlockInfo:
    return BlockInfo(
        code=fields.get("code", ""),
        reason=fields.get("reason", ""),
        component_id=text(fields, "component_id"),
        since=number(fields, "since") or 0,
        next_probe=number(fields, "next_probe") or 0,
    )
