"""What is sent: events of every kind, by a producer that repeats a publish until it is answered."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis.asyncio as redis_client

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from runtime.broker.outcome import RunMeta
from runtime.broker.publisher import PublishRequest
from runtime.errors import BrokerError
from shared_models.codec import encode
from shared_models.envelope import EventEnvelope
from tests.chaos.pods import boot

MIXED = RouteKeys("flows:mixed", "headrace")
"""The route whose events do everything."""
CALM = RouteKeys("flows:calm", "headrace")
"""The route whose events only succeed: the other one's harm is not theirs."""
ROUTES = {"mixed": MIXED, "calm": CALM}

BATCH = 50

MIX: Mapping[str, tuple[float, Mapping[str, Any]]] = {
    "ok": (0.80, {}),
    "slow": (0.08, {"sleep": 0.7}),
    "fails_first": (0.07, {"fail_first": 1}),
    "fails": (0.03, {"fail_first": 99}),
    "hangs": (0.006, {"sleep": 600}),
    "exits": (0.006, {"exit": True}),
    "blocks": (0.002, {"block": 600}),
}
"""Each kind's share, and what its payload asks of the engine."""

COSTLY = {"hangs": 10, "exits": 15, "blocks": 3}
"""Each takes seconds of a process: so many of a kind a minute at most."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event, and what should become of it."""

    id: str
    route: str
    kind: str

    @property
    def keys(self) -> RouteKeys:
        """Its route's."""
        return ROUTES[self.route]

    @property
    def succeeds(self) -> bool:
        """Whether it completes, if nobody kills it too often."""
        return self.kind in ("ok", "slow", "fails_first")


def plan(seed: int, count: int, *, minutes: float) -> list[Event]:
    """The events of a run, in order."""
    draw = random.Random(f"events {seed}")
    left = {kind: max(1, int(most * minutes)) for kind, most in COSTLY.items()}
    events = []
    for number in range(count):
        route = "calm" if draw.random() < 0.3 else "mixed"
        kind = draw.choices(list(MIX), [share for share, _ in MIX.values()])[0] if route == "mixed" else "ok"
        if kind in left:
            left[kind] -= 1
            if left[kind] < 0:
                kind = "ok"
        events.append(Event(f"chaos-{seed}-{number}", route, kind))
    return events


class Producer:
    """Publishes the plan at an even pace. Every event that it has ever tried to send is in ``tried``."""

    def __init__(self, url: str, events: Sequence[Event], *, seconds: float, ledger: str, seed: int) -> None:
        self._broker = Broker.connect(url, _settings())
        self._redis = redis_client.Redis.from_url(url, socket_timeout=5)
        self._events = events
        self._seconds = seconds
        self._ledger = ledger
        self._draw = random.Random(f"producer {seed}")
        self.tried: dict[str, Event] = {}
        self.sent: dict[str, list[float]] = defaultdict(list)
        """When it was tried to send each, by the boot clock."""
        self.accepted: set[str] = set()
        self.ended: set[str] = set()
        """What had ended when Redis lost it: never sent again."""
        self.resent = 0

    async def run(self) -> None:
        """Until everything is accepted."""
        began = asyncio.get_running_loop().time()
        for first in range(0, len(self._events), BATCH):
            batch = self._events[first : first + BATCH]
            due = began + self._seconds * first / len(self._events)
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            await self._publish(batch)
            await self._stutter(batch)

    async def resend(self) -> None:
        """Publish again what Redis has lost before it ended."""
        lost = [event for event in self.tried.values() if event.id not in self.ended]
        for first in range(0, len(lost), BATCH):
            batch = [event for event in lost[first : first + BATCH] if event.id not in self.ended]
            self.resent += len(batch)
            await self._publish(batch)

    async def close(self) -> None:
        """Hang up."""
        await self._broker.close()
        await self._redis.aclose()

    async def _publish(self, events: Sequence[Event]) -> None:
        left = list(events)
        self.tried.update((event.id, event) for event in left)
        while left:
            for event in left:
                self.sent[event.id].append(boot())
            try:
                answers = await self._broker.publisher.publish_many([self._request(event) for event in left])
            except BrokerError:
                await asyncio.sleep(0.2)
                continue
            self.accepted.update(e.id for e, a in zip(left, answers, strict=True) if not isinstance(a, BrokerError))
            left = [event for event, answer in zip(left, answers, strict=True) if isinstance(answer, BrokerError)]
            if left:
                await asyncio.sleep(0.1)

    async def _stutter(self, events: Sequence[Event]) -> None:
        """A producer in another language, that sends an event twice and knows of no dedup.

        Only what succeeds: sent again after its dead letter, an event is a new one.
        """
        for event in events:
            if event.succeeds and self._draw.random() < 0.01:
                fields = dict(self._request(event).fields)
                self.sent[event.id].append(boot())
                with suppress(redis_client.RedisError, OSError):
                    await self._redis.xadd(event.keys.stream, fields)

    def _request(self, event: Event) -> PublishRequest:
        asked = {"event": event.id, "ledger": self._ledger, **MIX[event.kind][1]}
        payload = {"input_value": json.dumps(asked), **MIX[event.kind][1]}
        envelope = EventEnvelope(event_id=event.id, root_id=event.id, idempotency_key=event.id, payload=payload)
        meta = RunMeta(route=event.route, version="", root_id=event.id, key=event.id)
        return PublishRequest(event.keys.stream, encode(envelope), event.id, event.keys, meta)


def _settings() -> Any:
    from runtime.settings import RedisSettings

    return RedisSettings(connect_timeout=2.0, command_timeout=5.0)
