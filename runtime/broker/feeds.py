"""The feeds of runs: reading many at once, from where a reader was; adding a run's progress."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.broker.connection import Command, Connection, Line
from runtime.broker.keys import RouteKeys
from runtime.broker.records import number, show, texts, to_json
from runtime.errors import BrokerError
from shared_models.result import RunEvent, RunEventType, RunStatus

FROM_START = "0-0"
"""The id before every line of a feed."""

LENGTH = 1000
"""Lines that the stream of a feed keeps, about."""

PAGE = 100
"""Lines of one feed in one reply."""

FOLLOWED = 30.0
"""Seconds that a run counts as followed, since that was last told."""


@dataclass(frozen=True, slots=True)
class FeedPage:
    """Lines of a feed. ``last`` is the id to go on after.

    ``gap``: lines before the first of these, or before the end, are lost. ``status`` is the run's, None where there is
    no record of it.
    """

    lines: tuple[RunEvent, ...]
    last: str
    gap: bool
    status: RunStatus | None
    tenant_id: str | None = None


@dataclass(frozen=True, slots=True)
class News:
    """New lines of a feed. ``full``: there may be more, and some may have been lost before the first."""

    lines: tuple[RunEvent, ...]
    last: str
    full: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """A line that a run adds to its feed. ``at``: ms since the epoch."""

    type: RunEventType
    at: int
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants of a run that is under way."""

    cancelled: bool
    followed: bool


class Feeds:
    """Reads and writes feeds."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[object, Line] = {}

    async def page(self, keys: RouteKeys, event_id: str, *, after: str = FROM_START) -> FeedPage:
        """Lines after an id: from the stream, or from the record once the run has ended and the stream is gone."""
        feed = keys.feed(event_id)
        # The record first: if it says that the run has ended, the feed has the last line already.
        replies = await self._connection.pipeline(
            [
                ("HMGET", keys.run(event_id), "status", "feed", "feed_gap", "tenant_id"),
                ("XRANGE", feed, f"({after}", "+", "COUNT", PAGE),
                ("XRANGE", feed, after, after),
                ("XINFO", "STREAM", feed),
            ]
        )
        record, found, same, info = replies
        for reply in (record, found, same):
            if isinstance(reply, BrokerError):
                raise reply
        status, tenant = _status(record[0]), show(record[3]) if record[3] else None
        stream = {} if isinstance(info, BrokerError) else _info(info)
        if stream:
            lines, last = _lines(found, after)
            return FeedPage(lines, last, not same and _trimmed(stream, after), status, tenant)
        kept = tuple(folded(record[1], after)) if record[1] else ()
        lost = record[2] is not None and order(record[2].decode()) > order(after)
        return FeedPage(kept, kept[-1].id if kept else after, lost, status, tenant)

    def together(self, feed: str, other: str) -> bool:
        """Whether one ``read`` may have both feeds."""
        return self._connection.together(feed, other)

    async def read(self, reader: object, tails: Mapping[str, str], *, seconds: float) -> dict[str, News]:
        """Wait up to ``seconds`` for lines of many feeds, each after its id; by feed, those that have any.

        ``reader`` names this read for ``unblock``. On a cluster all feeds must lie together.
        """
        block = max(1, int(seconds * 1000))
        command: Command = ("XREAD", "COUNT", PAGE, "BLOCK", block, "STREAMS", *tails, *tails.values())
        async with self._connection.blocking(next(iter(tails))) as line:
            self._waiting[reader] = line
            try:
                reply = await line.send(*command, seconds=seconds)
            finally:
                del self._waiting[reader]
        news = {}
        for name, entries in reply or ():
            feed = name.decode()
            lines, last = _lines(entries, tails[feed])
            news[feed] = News(lines, last, full=len(entries) == PAGE)
        return news

    async def unblock(self, reader: object) -> None:
        """Let a ``read`` return at once, with nothing, if it is waiting."""
        if (line := self._waiting.get(reader)) is not None:
            await line.unblock()

    async def follow(self, runs: Sequence[tuple[RouteKeys, str]]) -> None:
        """Tell whoever runs these that somebody follows them, for ``FOLLOWED`` seconds."""
        ms = int(FOLLOWED * 1000)
        await self._all([("SET", keys.watched(event_id), "1", "PX", ms) for keys, event_id in runs])

    async def asked(self, runs: Sequence[tuple[RouteKeys, str, str, str]]) -> list[Asked]:
        """What is wanted of runs, each given as its route's keys, its key, its event id and its attempt's token.

        Of one that Redis does not answer for, while it does for others, nothing.
        """
        commands: list[Command] = []
        for keys, key, event_id, _ in runs:
            commands += (("HMGET", keys.gate(key), "cancel", "token"), ("EXISTS", keys.watched(event_id)))
        replies = await self._connection.pipeline(commands)
        return [
            Asked(cancelled=gate == [b"1", token.encode()], followed=followed == 1)
            for (_, _, _, token), gate, followed in zip(runs, replies[::2], replies[1::2], strict=True)
        ]

    async def followed(self, keys: RouteKeys, event_id: str) -> bool:
        """Whether somebody follows a run."""
        return bool(await self._connection.command("EXISTS", keys.watched(event_id)))

    async def append(self, keys: RouteKeys, event_id: str, lines: Sequence[Progress]) -> None:
        """Add lines to a feed, in order, if there is one. Not to be repeated: a line could be there twice."""
        feed = keys.feed(event_id)
        trim = ("NOMKSTREAM", "MAXLEN", "~", LENGTH, "*")
        await self._all(
            [
                ("XADD", feed, *trim, "type", line.type, "at", line.at, "data", to_json(dict(line.data)))
                for line in lines
            ]
        )

    async def _all(self, commands: Sequence[Command]) -> list[Any]:
        replies = await self._connection.pipeline(commands)
        for reply in replies:
            if isinstance(reply, BrokerError):
                raise reply
        return replies


def folded(text: bytes, after: str) -> list[RunEvent]:
    """The lines that a record keeps, after an id."""
    try:
        lines = [(str(line_id), dict(zip(flat[::2], flat[1::2], strict=True))) for line_id, flat in json.loads(text)]
    except (ValueError, TypeError):
        return []
    events = (read_line(line_id, fields) for line_id, fields in lines if order(line_id) > order(after))
    return [event for event in events if event is not None]


def order(line_id: str) -> tuple[int, int]:
    """What an id of a line sorts by. Raises ValueError."""
    milliseconds, _, sequence = line_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def read_line(line_id: str, fields: dict[str, str]) -> RunEvent | None:
    """A line from its fields; None where a newer version has written it."""
    try:
        kind, data = RunEventType(fields.get("type", "")), json.loads(fields.get("data", "{}"))
    except ValueError:
        return None
    at = number(fields, "at") or int(line_id.partition("-")[0])
    return RunEvent(id=line_id, type=kind, at=at, data=data if isinstance(data, dict) else {})


def _lines(entries: Sequence[Any], after: str) -> tuple[tuple[RunEvent, ...], str]:
    lines = tuple(line for i, flat in entries if (line := read_line(i.decode(), texts(flat))) is not None)
    return lines, entries[-1][0].decode() if entries else after


def _info(flat: Sequence[Any]) -> dict[str, Any]:
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _trimmed(stream: Mapping[str, Any], after: str) -> bool:
    """Whether lines after an id, which is none of the stream's, are not there any more."""
    first = stream.get("first-entry")
    if not first or stream.get("entries-added", 0) <= stream.get("length", 0):
        return False
    return order(after) < order(first[0].decode())


def _status(value: bytes | None) -> RunStatus | None:
    if value is None:
        return None
    try:
        return RunStatus(show(value))
    except ValueError:
        return RunStatus.QUEUED
