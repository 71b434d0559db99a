"""Publishing events to streams, once per event id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.broker.connection import Connection
from runtime.broker.keys import RouteKeys
from runtime.broker.outcome import RunMeta
from runtime.errors import BrokerError
from runtime.settings import RetentionSettings

Fields = Sequence[tuple[str | bytes, str | bytes]]


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
    ttl: float = 86400.0


class Publisher:
    """Publishes events; safe to repeat."""

    def __init__(self, connection: Connection, retention: RetentionSettings) -> None:
        self._connection = connection
        self._retention = retention

    async def publish(
        self,
        keys: RouteKeys | None,
        stream: str,
        fields: Fields,
        *,
        event_id: str,
        ttl: float = 86400.0,
        meta: RunMeta | None = None,
    ) -> PublishedEntry:
        """Publish one event. Raises PublishRefused if the key is not a stream, BrokerUnavailable."""
        raise NotImplementedError

    async def publish_many(self, requests: Sequence[PublishRequest]) -> list[PublishedEntry | BrokerError]:
        """Publish many events in one round trip; what became of each, in order."""
        raise NotImplementedError
