"""Run records and their feeds."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from runtime.broker.connection import Connection
from runtime.broker.feeds import folded, read_line
from runtime.broker.keys import RouteKeys
from runtime.broker.listing import ANY, Listing, RunFilter, RunPage
from runtime.broker.records import run_record, show, texts
from runtime.broker.scripts import call
from runtime.errors import BrokerError
from runtime.settings import RetentionSettings
from shared_models.result import RunEvent, RunRecord


class Cancelled(IntEnum):
    """What cancel says. ASKED: it runs; it is cancelled when its attempt fails, not when it completes."""

    UNKNOWN = 0
    CANCELLED = 1
    ASKED = 2
    ENDED = 3


class Runs:
    """Reads run records and their feeds."""

    def __init__(self, connection: Connection, retention: RetentionSettings) -> None:
        self._connection = connection
        self._retention = retention
        self._listing = Listing(connection)

    async def get(self, keys: RouteKeys, event_id: str) -> RunRecord | None:
        """The record of an event's run on this route; a duplicate's has the result of the event it repeats."""
        return await self.find([keys], event_id)

    async def find(self, keys: Sequence[RouteKeys], event_id: str) -> RunRecord | None:
        """The record of an event's run on the first of these routes that has one."""
        for route, record in zip(keys, await self.records([(k, event_id) for k in keys]), strict=True):
            if record is not None:
                return await self.answered(route, record)
        return None

    async def page(
        self,
        keys: Sequence[RouteKeys],
        wanted: RunFilter = ANY,
        *,
        count: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        """Up to ``count`` runs of these routes after the cursor, newest first. Raises EnvelopeInvalid."""
        return await self._listing.page(keys, wanted, count, cursor)

    async def digest(self, keys: RouteKeys, event_id: str) -> str | None:
        """The digest of the request that brought an event; None where none is kept."""
        kept = await self._connection.command("HGET", keys.run(event_id), "digest")
        return show(kept) if kept else None

    async def feed(
        self, keys: RouteKeys, event_id: str, *, after: str = "0-0", block: float | None = None, count: int = 100
    ) -> list[RunEvent]:
        """Lines of a run's feed after the id ``after``; waits up to ``block`` seconds for the first.

        Those of a run that has ended are in its record, once the stream is gone.
        """
        feed = keys.feed(event_id)
        found, kept = await self._connection.pipeline(
            [("XRANGE", feed, f"({after}", "+", "COUNT", count), ("HGET", keys.run(event_id), "feed")]
        )
        for reply in (found, kept):
            if isinstance(reply, BrokerError):
                raise reply
        if not found and kept and (told := folded(kept, after)):
            return told[:count]
        if not found and block is not None and block > 0:
            command = ("XREAD", "COUNT", count, "BLOCK", max(1, int(block * 1000)), "STREAMS", feed, after)
            async with self._connection.blocking(feed) as line:
                reply = await line.send(*command, seconds=block)
            found = reply[0][1] if reply else []
        lines: list[RunEvent | None] = [read_line(line_id.decode(), texts(flat)) for line_id, flat in found]
        return [line for line in lines if line is not None]

    async def cancel(self, keys: RouteKeys, event_id: str, *, ttl: float = 86400.0) -> Cancelled:
        """Cancel an event that has not ended. ``ttl``: seconds its key stays taken."""
        key = await self._connection.command("HGET", keys.run(event_id), "idempotency_key")
        gate = keys.gate(show(key) if key else event_id)
        names = [keys.stream, gate, keys.due, keys.run(event_id), keys.feed(event_id)]
        ttl_ms = max(1, int(ttl * 1000))
        args = (keys.group, event_id, ttl_ms, max(ttl_ms, int(self._retention.runs * 1000)))
        (answer,) = await self._connection.run(call("cancel", names, *args))
        return Cancelled(answer)

    async def trim(self, routes: Sequence[RouteKeys]) -> None:
        """Forget the oldest of each route's list of runs (the records themselves expire), in one round trip."""
        oldest = await self._now() - int(self._retention.runs * 1000)
        await self._connection.pipeline(
            [
                command
                for keys in routes
                for command in (
                    ("ZREMRANGEBYSCORE", keys.runs, "-inf", oldest),
                    ("ZREMRANGEBYRANK", keys.runs, 0, -self._retention.run_list - 1),
                )
            ]
        )

    async def records(self, wanted: Sequence[tuple[RouteKeys, str]]) -> list[RunRecord | None]:
        """The records of many events' runs, in order; None where there is none."""
        replies = await self._connection.pipeline([("HGETALL", keys.run(event_id)) for keys, event_id in wanted])
        records: list[RunRecord | None] = []
        for (keys, event_id), reply in zip(wanted, replies, strict=True):
            if isinstance(reply, BrokerError):
                raise reply
            records.append(run_record(texts(reply), event_id=event_id, stream=keys.stream) if reply else None)
        return records

    async def answered(self, keys: RouteKeys, record: RunRecord) -> RunRecord:
        """A duplicate is answered with what became of the event that it repeats."""
        if record.duplicate_of is None or record.duplicate_of == record.event_id:
            return record
        first = await self._connection.command("HGETALL", keys.run(record.duplicate_of))
        if not first:
            return record
        told = run_record(texts(first), event_id=record.duplicate_of, stream=keys.stream)
        if told.tenant_id != record.tenant_id:  # the same key of another tenant's producer: not theirs to read
            return record
        return record.model_copy(update={"result": told.result, "dead_letter": told.dead_letter})

    async def _now(self) -> int:
        seconds, microseconds = await self._connection.command("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000
