"""Taking a delivery in: its entry is decoded, and the claim on its gate made out. Knows neither Redis nor Langflow."""

from __future__ import annotations

import itertools
import time

from runtime.broker.delivery import Delivery
from runtime.broker.gate import Claim
from runtime.broker.outcome import RunMeta
from runtime.errors import ArchiveUnavailable, EventFault
from runtime.expressions import ExpressionFailed
from runtime.worker import callbacks, publications
from runtime.worker.attachments import Attachments
from runtime.worker.flights import Flight
from runtime.worker.lanes import ActiveRoute
from runtime.worker.work import Work
from shared_models.codec import decode, peek_event_id
from shared_models.dead_letter import ErrorInfo
from shared_models.envelope import EventEnvelope
from shared_models.errors import HeadraceError


class Intake:
    """Takes deliveries in for one worker identity. ``max_payload`` is in bytes."""

    def __init__(self, *, worker: str, max_payload: int, attachments: Attachments) -> None:
        self._worker = worker
        self._max_payload = max_payload
        self._attachments = attachments
        self._tokens = itertools.count(1)

    async def take(self, flight: Flight, delivery: Delivery, active: ActiveRoute) -> Work:
        """The delivery as work. What cannot be decoded is taken in too: it goes the same way, to the dead letters.

        Raises ArchiveUnavailable where the payload cannot be had now: nothing has begun then.
        """
        route, stream = active.route, flight.lane.keys.stream
        envelope: EventEnvelope | None = None
        poison: HeadraceError | None = None
        key = event_id = ""
        try:
            if flight.condemned:
                raise EventFault(_lost_too_often())
            envelope = decode(
                delivery.fields,
                stream=stream,
                entry_id=delivery.entry_id,
                max_payload=self._max_payload,
                now_ms=time.time_ns() // 1_000_000,
            )
            event_id, key = envelope.event_id, envelope.idempotency_key
            if envelope.callback_url and not callbacks.allowed(route.spec):
                raise EventFault(_callback_refused(route.name))
            envelope = await self._attachments.whole(envelope)
            if route.spec.idempotency.key is not None:
                key = _key(route.spec.idempotency.key, envelope, where=f"route {route.name}, idempotency.key")
        except ArchiveUnavailable:
            raise  # the payload may be what the key is made of: without it there is no gate to begin at
        except HeadraceError as error:
            poison = error
            if envelope is None:
                key = event_id = peek_event_id(delivery.fields, stream=stream, entry_id=delivery.entry_id)
        claim = Claim(
            keys=flight.lane.keys,
            worker=self._worker,
            entry_id=delivery.entry_id,
            token=self.new_token(flight),
            key=key,
            event_id=event_id,
            ttl=route.spec.idempotency.ttl,
        )
        return Work(flight, delivery, active, claim, _meta(active, envelope, event_id, key), envelope, poison)

    def new_token(self, flight: Flight) -> str:
        """A token that no other attempt has; the lane knows of it until the flight ends."""
        token = f"{self._worker}.{next(self._tokens)}"
        flight.lane.flights[flight.entry_id] = token
        return token


def _key(expression: str, envelope: EventEnvelope, *, where: str) -> str:
    key = publications.scope_of(envelope).text(expression, where=where)
    if not key.strip():  # shared by all that lack it, it would swallow every event but the first
        raise ExpressionFailed(f"{where}: gave a blank key for this event")
    return key


def _meta(active: ActiveRoute, envelope: EventEnvelope | None, event_id: str, key: str) -> RunMeta:
    if envelope is None:
        return RunMeta(route=active.route.name, version=active.route.version, root_id=event_id)
    return RunMeta(
        route=active.route.name,
        version=active.route.version,
        root_id=envelope.root_id,
        parent_id=envelope.parent_id,
        step_index=envelope.step_index,
        session_id=envelope.session_id,
        tenant_id=envelope.tenant_id,
        key=key,
    )


def _callback_refused(route: str) -> ErrorInfo:
    return ErrorInfo(
        code="callback_refused",
        message=f"the event names a callback_url, which route {route} does not allow; add callback: "
        "{allow_request: true} to the route's spec, or leave it out",
    )


def _lost_too_often() -> ErrorInfo:
    return ErrorInfo(
        code="worker_died",
        message="one worker process after the other died with this entry before it began; it was not decoded",
    )
