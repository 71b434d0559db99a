"""A worker's hands without its head: the broker's commands as a worker would give them, one at a time.

Time in Redis cannot be turned back or forward, but what depends on it can: leases, due times and graces are set to the
past where a test needs them over, so that no test sleeps.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime.broker.client import Broker
from runtime.broker.delivery import Delivery, Fetched, Grant
from runtime.broker.gate import Claim
from runtime.broker.keys import RouteKeys
from runtime.broker.leases import LeaseState
from runtime.broker.outcome import (
    Completed,
    DeadLettered,
    Outcome,
    Publication,
    Released,
    Retried,
    RunMeta,
    Settled,
    Suspended,
)
from runtime.broker.publisher import DEDUP, Fields, PublishedEntry, PublishRequest
from runtime.broker.reader import FetchRequest
from runtime.errors import BrokerError
from shared_models.chat import ChatCommit
from shared_models.dead_letter import ErrorInfo
from shared_models.result import Pause, PauseOption, RunRecord, RunResult

STREAM = "flows:a"
KEYS = RouteKeys(STREAM, "headrace")
DEAD = "flows:a:dead_letter"
RESULTS = "flows:a:results"
ERROR = ErrorInfo(code="run_failed", message="it broke", component_id="c-1")
LEASE = 60.0


@dataclass(frozen=True)
class Try:
    """One begun attempt: what was asked and what was granted."""

    claim: Claim
    delivery: Delivery
    meta: RunMeta
    grant: Grant


class Hand:
    """One worker of the route."""

    def __init__(self, broker: Broker, name: str = "w1", keys: RouteKeys = KEYS) -> None:
        self.broker = broker
        self.name = name
        self.keys = keys
        self._tokens = itertools.count(1)

    @classmethod
    async def ready(cls, broker: Broker, name: str = "w1", keys: RouteKeys = KEYS) -> Hand:
        """A worker with a group and a lease."""
        hand = cls(broker, name, keys)
        await broker.streams.ensure_group(keys)
        assert await hand.renew() is not LeaseState.DEAD
        return hand

    async def renew(self, ttl: float = LEASE) -> LeaseState:
        (state,) = await self.broker.leases.renew([self.keys], worker=self.name, ttl=ttl)
        return state

    async def look(self, n: int = 10, *, probe: bool = False) -> Fetched:
        (found,) = await self.broker.reader.fetch([FetchRequest(self.keys, self.name, n, probe, 30.0)])
        if isinstance(found, Exception):
            raise found
        return found

    async def fetch(self, n: int = 10) -> list[Delivery]:
        return list((await self.look(n)).deliveries)

    async def one(self) -> Delivery:
        (delivery,) = await self.fetch(1)
        return delivery

    async def begin(
        self,
        delivery: Delivery,
        event: str | None = None,
        *,
        key: str | None = None,
        token: str | None = None,
        max_attempts: int = 3,
        wait: float = 0.0,
        takeover: str = "",
        probe: bool = False,
        ttl: float = 86400.0,
        alone: bool = True,
    ) -> Try:
        """Begin; the event is the entry's ``event_id`` unless told otherwise."""
        event = event or event_of(delivery)
        token = token or f"{self.name}.{next(self._tokens)}"
        claim = Claim(self.keys, self.name, delivery.entry_id, token, key or event, event, ttl)
        meta = RunMeta(route="a", version="v1", root_id=event, key=key or event)
        grant = await self.broker.gate.begin(
            claim, max_attempts=max_attempts, wait=wait, meta=meta, takeover=takeover, probe=probe, alone=alone
        )
        return Try(claim, delivery, meta, grant)

    async def again(self, attempt: Try, *, max_attempts: int = 3, takeover: str = "") -> Grant:
        """The same begin once more, as after a lost reply."""
        return await self.broker.gate.begin(
            attempt.claim, max_attempts=max_attempts, wait=0.0, meta=attempt.meta, takeover=takeover
        )

    async def settle(self, attempt: Try, outcome: Outcome) -> Settled:
        return await self.broker.settlement.settle(
            attempt.claim,
            outcome,
            delivery=attempt.delivery,
            attempts=attempt.grant.attempts,
            meta=attempt.meta,
            dead_letter_stream=DEAD,
        )

    async def complete(self, attempt: Try, text: str = "done", *, chat: Sequence[ChatCommit] = ()) -> Settled:
        """Complete, with one event for the results."""
        result = RunResult(text=text)
        told = Publication(RESULTS, f"{attempt.claim.event_id}>", (("event_id", f"{attempt.claim.event_id}>"),))
        return await self.settle(attempt, Completed(result, (told,), tuple(chat)))

    async def retry(self, attempt: Try, delay: float = 0.0) -> Settled:
        return await self.settle(attempt, Retried(delay, ERROR))

    async def release(self, attempt: Try, delay: float = 0.0) -> Settled:
        return await self.settle(attempt, Released(None, delay))

    async def suspend(self, attempt: Try, request: str = "q:1", wait: float = 100.0) -> Settled:
        return await self.settle(attempt, Suspended(question(request), b"checkpoint of " + request.encode(), wait))

    async def bury(self, attempt: Try) -> Settled:
        return await self.settle(attempt, DeadLettered(ERROR))

    async def die(self, blame: Sequence[str] | None = None) -> None:
        """End, seen by a supervisor."""
        await self.broker.recovery.declare_dead(self.keys, worker=self.name, blame=blame)

    async def expire(self) -> None:
        """Let the lease be over."""
        await raw(self.broker, "ZADD", self.keys.leases, await now(self.broker) - 1, self.name)


def question(request: str = "q:1", fallback: str | None = None) -> Pause:
    """What a run may ask."""
    options = [PauseOption(action_id=action, label=action.title()) for action in ("approve", "reject")]
    return Pause(
        request_id=request, prompt="May I?", options=options, allowed=[o.action_id for o in options], fallback=fallback
    )


async def raw(broker: Broker, *command: str | bytes | int | float) -> Any:
    """A command as it is."""
    return await broker.connection.command(*command)


async def now(broker: Broker) -> int:
    """Redis' time in ms."""
    seconds, microseconds = await raw(broker, "TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


async def send(broker: Broker, event: str, stream: str = STREAM, **fields: str) -> str:
    """An event as any client adds it; the entry's id."""
    pairs = [part for pair in {"event_id": event, **fields}.items() for part in pair]
    entry: bytes = await raw(broker, "XADD", stream, "*", *pairs)
    return entry.decode()


async def publish_one(
    broker: Broker,
    keys: RouteKeys | None,
    stream: str,
    fields: Fields,
    *,
    event_id: str,
    ttl: float = DEDUP,
    meta: RunMeta | None = None,
) -> PublishedEntry:
    """One event through the publisher; the error that it met is raised."""
    (entry,) = await broker.publisher.publish_many([PublishRequest(stream, fields, event_id, keys, meta, ttl)])
    if isinstance(entry, BrokerError):
        raise entry
    return entry


async def make_due(broker: Broker, keys: RouteKeys = KEYS) -> None:
    """Let every parked entry be due, and every waiting gate know."""
    for entry in await raw(broker, "ZRANGE", keys.due, 0, -1):
        await raw(broker, "ZADD", keys.due, 0, entry)
    for gate in await raw(broker, "KEYS", keys.gate("*")):
        await raw(broker, "HDEL", gate, "due")


async def sweep(broker: Broker, keys: RouteKeys = KEYS, *, page: int = 80, max_deliveries: int = 9) -> Any:
    """A sweep with no grace left."""
    await raw(broker, "HSET", keys.obits, "#pulse", await now(broker), "#grace", 0)
    return await broker.recovery.sweep(keys, lease=LEASE, gap=5.0, idle=600.0, page=page, max_deliveries=max_deliveries)


async def gate_of(broker: Broker, key: str, keys: RouteKeys = KEYS) -> dict[str, str]:
    """A gate as it is stored."""
    flat = await raw(broker, "HGETALL", keys.gate(key))
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}


async def run_of(broker: Broker, event: str, keys: RouteKeys = KEYS) -> RunRecord:
    """A run's record, which must exist."""
    record = await broker.runs.get(keys, event)
    assert record is not None
    return record


async def entries(broker: Broker, stream: str) -> list[dict[bytes, bytes]]:
    """What a stream holds."""
    found = await raw(broker, "XRANGE", stream, "-", "+")
    return [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in found]


async def parked(broker: Broker, keys: RouteKeys = KEYS) -> list[str]:
    """Ids of parked entries; each must have a due time."""
    pending = await raw(broker, "XPENDING", keys.stream, keys.group, "-", "+", 1000, "~parked")
    ids = [entry[0].decode() for entry in pending]
    for entry in ids:
        assert await raw(broker, "ZSCORE", keys.due, entry) is not None, f"{entry} is parked for ever"
    return ids


def event_of(delivery: Delivery) -> str:
    """The entry's event id."""
    return dict(delivery.fields)[b"event_id"].decode()
