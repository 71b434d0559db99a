"""Dead letters: list, show, requeue, drop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.broker.connection import Connection
from runtime.broker.keys import RouteKeys
from runtime.settings import RetentionSettings
from shared_models.dead_letter import DeadLetter


@dataclass(frozen=True, slots=True)
class Requeued:
    """``entry_id`` is the new entry; None: the dead letter was gone (requeued or dropped before)."""

    entry_id: str | None
    event_id: str = ""


class DeadLetters:
    """Works on dead-letter streams."""

    def __init__(self, connection: Connection, retention: RetentionSettings) -> None:
        self._connection = connection
        self._retention = retention

    async def get(self, stream: str, dead_letter_id: str) -> DeadLetter | None:
        """One dead letter."""
        raise NotImplementedError

    async def fields(self, stream: str, dead_letter_id: str) -> tuple[tuple[bytes, bytes], ...] | None:
        """The original entry's fields, byte for byte, in order."""
        raise NotImplementedError

    async def requeue(
        self,
        keys: RouteKeys,
        *,
        stream: str,
        dead_letter_id: str,
        fields: Sequence[tuple[bytes, bytes]] | None = None,
    ) -> Requeued:
        """Put a dead letter back on its route's stream with all attempts before it; ``fields`` instead of its own."""
        raise NotImplementedError

    async def drop(self, stream: str, ids: Sequence[str]) -> int:
        """Delete dead letters for good; how many there were."""
        raise NotImplementedError

    async def list(self, stream: str, *, count: int = 100, after: str = "0-0") -> list[DeadLetter]:
        """Up to ``count`` dead letters after the id ``after``, oldest first. Secrets are not masked here."""
        raise NotImplementedError
