"""Listing runs over many routes: newest first, filtered, a page at a time, with bounded work for each."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.broker.connection import Command, Connection
from runtime.broker.keys import RouteKeys
from runtime.broker.records import run_record, show, texts
from runtime.errors import BrokerError
from shared_models.errors import EnvelopeInvalid
from shared_models.result import RunRecord, RunStatus
from shared_models.strict_json import parse_json

BATCH = 200
"""Runs looked at in one round trip, where a filter may leave most of them out."""

EXAMINED = 2000
"""Runs looked at for one page. Where few match, a page holds less than was asked for, and the next one goes on."""

_NEVER = 2**53

Position = tuple[int, str, str]
"""Where a page ended: the time (ms) of a run's last beginning, its event id, its route's key prefix."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs: None is any. ``since`` and ``until`` bound the time (ms) of the last beginning, both included."""

    status: RunStatus | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    since: int | None = None
    until: int | None = None

    @property
    def of_records(self) -> bool:
        """Whether records have to be looked at."""
        return (self.status, self.session_id, self.tenant_id) != (None, None, None)

    def takes(self, status: str | None, session: str | None, tenant: str | None) -> bool:
        """Whether a run with these is wanted."""
        wanted = (self.status.value if self.status else None, self.session_id, self.tenant_id)
        return all(want is None or want == have for want, have in zip(wanted, (status, session, tenant), strict=True))


ANY = RunFilter()


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs, newest first. ``next`` is the cursor of the page after this one; None: there is none."""

    records: tuple[RunRecord, ...]
    next: str | None = None


class Listing:
    """Reads the lists of runs that routes keep."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def page(self, keys: Sequence[RouteKeys], wanted: RunFilter, count: int, cursor: str | None) -> RunPage:
        """Up to ``count`` runs after the cursor. Raises EnvelopeInvalid where that is none of ours."""
        routes = {route.prefix: route for route in keys}
        position = _position(cursor) if cursor else None
        batch = max(count, BATCH) if wanted.of_records else count
        found: list[RunRecord] = []
        examined = 0
        while examined < EXAMINED:
            older = await self._older(list(routes.values()), wanted, position, batch)
            matching = await self._matching([(routes[prefix], event_id) for _, event_id, prefix in older], wanted)
            for at, record in matching:
                found.append(record)
                if len(found) == count:
                    more = at + 1 < len(older) or len(older) == batch
                    return RunPage(tuple(found), _cursor(older[at]) if more else None)
            if len(older) < batch:
                return RunPage(tuple(found))
            position, examined = older[-1], examined + len(older)
        return RunPage(tuple(found), _cursor(position) if position else None)

    async def _older(
        self, keys: Sequence[RouteKeys], wanted: RunFilter, position: Position | None, count: int
    ) -> list[Position]:
        """The newest ``count`` runs of all routes that are older than a position."""
        newest = str(position[0]) if position else "+inf"
        if wanted.until is not None and (position is None or wanted.until < position[0]):
            newest = str(wanted.until)
        oldest = str(wanted.since) if wanted.since is not None else "-inf"
        found: list[Position] = []
        left, offset = dict.fromkeys(keys, 0), 0
        while left:
            bounds = ("WITHSCORES", "LIMIT", offset, count)
            replies = await self._replies([("ZREVRANGEBYSCORE", r.runs, newest, oldest, *bounds) for r in left])
            again = {}
            for route, reply in zip(left, replies, strict=True):
                places = [(int(float(s)), show(e), route.prefix) for e, s in zip(reply[::2], reply[1::2], strict=True)]
                fresh = [place for place in places if position is None or place < position]
                found += fresh
                had = left[route] + len(fresh)
                if len(places) == count and had < count:  # the others of that millisecond were on earlier pages
                    again[route] = had
            left, offset = again, offset + count
        return sorted(found, reverse=True)[:count]

    async def _matching(self, runs: Sequence[tuple[RouteKeys, str]], wanted: RunFilter) -> list[tuple[int, RunRecord]]:
        """The records that the filter takes, each with its place among the runs; those that have expired are none."""
        places = list(range(len(runs)))
        if wanted.of_records:
            fields = await self._replies(
                [("HMGET", keys.run(event_id), "status", "session_id", "tenant_id") for keys, event_id in runs]
            )
            told = [[show(value) if value is not None else None for value in reply] for reply in fields]
            places = [place for place in places if wanted.takes(*told[place])]
        hashes = await self._replies([("HGETALL", runs[place][0].run(runs[place][1])) for place in places])
        return [
            (place, run_record(texts(flat), event_id=runs[place][1], stream=runs[place][0].stream))
            for place, flat in zip(places, hashes, strict=True)
            if flat
        ]

    async def _replies(self, commands: Sequence[Command]) -> list[list[bytes]]:
        replies = await self._connection.pipeline(commands)
        for reply in replies:
            if isinstance(reply, BrokerError):
                raise reply
        return replies


def _cursor(position: Position) -> str:
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def _position(cursor: str) -> Position:
    try:
        plain = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        at, event_id, prefix = parse_json(plain, field="cursor")
        if type(at) is int and 0 <= at < _NEVER and isinstance(event_id, str) and isinstance(prefix, str):
            return at, event_id, prefix
    except (EnvelopeInvalid, ValueError, TypeError):
        pass
    raise EnvelopeInvalid("cursor: is none that a page gave", field="cursor")
