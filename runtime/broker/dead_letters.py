"""Dead letters: list, show, requeue, drop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from runtime.broker.connection import Connection
from runtime.broker.keys import RouteKeys, published
from runtime.broker.letters import MAX_PAIRS, dead_letter, original_fields
from runtime.broker.records import show
from runtime.broker.scripts import Refusal, call
from runtime.errors import BrokerError, PublishRefused
from runtime.settings import RetentionSettings
from shared_models.dead_letter import DeadLetter

Pairs = tuple[tuple[bytes, bytes], ...]


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
        """One dead letter. Secrets are not masked here: see runtime.telemetry.redact."""
        pairs = await self._pairs(stream, dead_letter_id)
        return dead_letter(dead_letter_id, pairs) if pairs is not None else None

    async def fields(self, stream: str, dead_letter_id: str) -> Pairs | None:
        """The original entry's fields, byte for byte, in order."""
        pairs = await self._pairs(stream, dead_letter_id)
        return original_fields(pairs) if pairs is not None else None

    async def requeue(
        self,
        keys: RouteKeys,
        *,
        stream: str,
        dead_letter_id: str,
        fields: Sequence[tuple[bytes, bytes]] | None = None,
    ) -> Requeued:
        """Put a dead letter back on its route's stream with all attempts before it; ``fields`` instead of its own.

        The event keeps its id. Safe to repeat. Raises BrokerError for an entry of more fields than a script can add.
        """
        pairs = await self._pairs(stream, dead_letter_id)
        if pairs is None:
            return Requeued(None)
        ours = {name: show(value) for name, value in pairs if name.startswith(b"dl_")}
        event_id = ours.get(b"dl_event_id", "")
        key = ours.get(b"dl_key", "") or event_id
        entry = tuple(fields) if fields is not None else original_fields(pairs)
        if len(entry) > MAX_PAIRS:
            raise BrokerError(f"the entry has {len(entry)} fields; one of more than {MAX_PAIRS} cannot be requeued")
        if event_id and all(name != b"event_id" for name, _ in entry):
            # Its id came from its old entry's; without it the new entry would be a new event.
            entry = ((b"event_id", event_id.encode()), *entry)
        near = self._connection.together(keys.stream, stream)
        reply = await self._connection.run(
            call(
                "requeue",
                [
                    *(keys.stream, keys.gate(key), keys.run(event_id), keys.feed(event_id), keys.runs),
                    *(published(keys.stream, event_id), published(keys.stream, f"rq:{stream}:{dead_letter_id}")),
                    *((stream,) if near else ()),
                ],
                *(dead_letter_id, event_id, int(self._retention.runs * 1000)),
                *chain.from_iterable(entry),
            )
        )
        if reply[0] == Refusal.WRONG_TYPE:
            raise PublishRefused(f"{keys.stream} is not a stream; nothing was requeued", target=keys.stream)
        if not near:
            # Should this not be answered: the next call finds that the rest was done, and does this.
            await self.drop(stream, [dead_letter_id])
        return Requeued(reply[1].decode() if reply[0] == 1 else None, event_id)

    async def drop(self, stream: str, ids: Sequence[str]) -> int:
        """Delete dead letters for good; how many there were."""
        return int(await self._connection.command("XDEL", stream, *ids)) if ids else 0

    async def _pairs(self, stream: str, dead_letter_id: str) -> Pairs | None:
        found = await self._connection.command("XRANGE", stream, dead_letter_id, dead_letter_id)
        return _pairs_of(found[0][1]) if found else None

    async def list(self, stream: str, *, count: int = 100, after: str = "0-0") -> list[DeadLetter]:
        """Up to ``count`` dead letters after the id ``after``, oldest first. Secrets are not masked here."""
        found = await self._connection.command("XRANGE", stream, f"({after}", "+", "COUNT", count)
        return [dead_letter(letter_id.decode(), _pairs_of(flat)) for letter_id, flat in found]


def _pairs_of(flat: Sequence[bytes]) -> Pairs:
    return tuple(zip(flat[::2], flat[1::2], strict=True))
