"""Publishing events to streams, once per event id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from runtime.broker.connection import Connection
from runtime.broker.keys import RouteKeys, published
from runtime.broker.outcome import RunMeta
from runtime.broker.records import meta_fields
from runtime.broker.scripts import Call, Refusal, call
from runtime.errors import BrokerError, BrokerUnavailable, PublishRefused
from runtime.settings import RetentionSettings

Fields = Sequence[tuple[str | bytes, str | bytes]]

DEDUP = 86400.0
"""Seconds that a second publish of an event is recognised."""


@dataclass(frozen=True, slots=True)
class PublishedEntry:
    """``new`` is False if the event was published before; ``entry_id`` is then that entry's."""

    entry_id: str
    new: bool


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """One event to publish. ``keys`` and ``meta`` where the stream is a route's: its run is recorded as queued.

    ``ttl``: for how many seconds a second publish of the same event id is recognised.
    """

    stream: str
    fields: Fields
    event_id: str
    keys: RouteKeys | None = None
    meta: RunMeta | None = None
    ttl: float = DEDUP


class Publisher:
    """Publishes events; safe to repeat. Raises PublishRefused if a target is not a stream, and BrokerUnavailable."""

    def __init__(self, connection: Connection, retention: RetentionSettings) -> None:
        self._connection = connection
        self._retention = retention

    async def publish_many(self, requests: Sequence[PublishRequest]) -> list[PublishedEntry | BrokerError]:
        """Publish many events in one round trip; what became of each, in order."""
        asked = [self._publish(request) for request in requests]
        replies = await self._connection.run_all(asked) if len(asked) > 1 else [await self._one(one) for one in asked]
        return [_entry(reply, request) for reply, request in zip(replies, asked, strict=True)]

    async def _one(self, asked: Call) -> Any:
        # Sent together with other commands of the same moment: a gateway publishes one event a request.
        try:
            return await self._connection.run(asked)
        except BrokerUnavailable:
            raise
        except BrokerError as error:
            return error

    def _publish(self, request: PublishRequest) -> Call:
        keys, event_id = request.keys, request.event_id
        names = [request.stream, published(request.stream, event_id)]
        if keys is not None:
            names += [keys.run(event_id), keys.feed(event_id), keys.runs]
        fields = request.fields
        if all(name not in ("event_id", b"event_id") for name, _ in fields):
            # The script tells a published entry from a stranger's by this field.
            fields = [("event_id", event_id), *fields]
        told = meta_fields(request.meta, event_id=event_id) if request.meta else []
        args = (max(1, int(request.ttl * 1000)), event_id, int(self._retention.runs * 1000), "", "", len(told))
        return call("publish", names, *args, *told, *chain.from_iterable(fields))


def _entry(reply: Any, asked: Call) -> PublishedEntry | BrokerError:
    if isinstance(reply, BrokerError):
        return reply
    if reply[0] == Refusal.WRONG_TYPE:
        return PublishRefused(f"{asked.keys[0]} is not a stream; nothing was published", target=asked.keys[0])
    return PublishedEntry(reply[1].decode(), reply[0] == 1)
