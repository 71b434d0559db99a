"""From what a client sent to an event in the stream: the same for every way in."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.broker.fleet import RouteEntry
from runtime.broker.outcome import RunMeta
from runtime.broker.publisher import DEDUP, Fields, PublishRequest
from runtime.errors import BrokerError
from runtime.gateway.auth import Principal
from runtime.gateway.deps import Gateway
from runtime.gateway.problems import Problem
from runtime.gateway.routes_known import keys_of, spec_of
from shared_models.codec import encode, new_event_id
from shared_models.controls import check_id, read_time
from shared_models.envelope import EventEnvelope
from shared_models.errors import Expired
from shared_models.shapes import Draft

_REQUESTS = uuid.UUID("5b0a9f2c-0d55-5f0f-8a3e-2f6b7c1d9e03")


@dataclass(frozen=True, slots=True)
class Incoming:
    """One event as a client sent it.

    ``key`` makes a second one with the same key on the same route, of the same tenant, the same event, for ``ttl``
    seconds; ``digest`` then tells whether it is the same request. ``text`` is the JSON text of ``payload`` where it is
    to be kept as it came. ``controls`` are the envelope's control fields that the client may set, as text
    (``shared_models.controls``). ``reserved`` is the event's id where ``reserve`` has let it in.
    """

    payload: dict[str, Any]
    text: str | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    controls: dict[str, str] = field(default_factory=dict)
    event_id: str | None = None
    key: str | None = None
    digest: str | None = None
    ttl: float = DEDUP
    reserved: str | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """An event that is in the stream. ``new``: it was not before."""

    event_id: str
    root_id: str
    new: bool


def of_draft(draft: Draft) -> Incoming:
    """A CloudEvent, which is known by its source and id: they are its key."""
    return Incoming(draft.payload, attributes=draft.attributes, controls=draft.controls, event_id=draft.event_id)


def tenant_of(principal: Principal, asked: str | None) -> str | None:
    """The tenant that an event belongs to. Raises Problem 403 where the key is another tenant's."""
    if asked is not None:
        check_id(asked, field="tenant_id")
    if principal.tenant is None or asked is None:
        return principal.tenant or asked
    if asked != principal.tenant:
        raise Problem(403, "tenant_forbidden", "this key is for another tenant")
    return asked


async def reserve(gateway: Gateway, route: RouteEntry, tenant: str | None, key: str | None) -> str:
    """Let an event in whose content is still to come, so that none is taken in vain; its id.

    Raises Problem 429 and 503, and BrokerError.
    """
    event_id = _event_id(route, tenant, Incoming({}, key=key))
    await gateway.pressure.admit(route, tenant, [event_id])
    return event_id


async def accept(gateway: Gateway, route: RouteEntry, tenant: str | None, events: Sequence[Incoming]) -> list[Accepted]:
    """Publish the events to the route's stream; each is durable there when this returns.

    Raises a ContractError for one that cannot be an event (nothing is published then), Problem 422 for a key that was
    used for another request, 429 and 503 where it is too much now, and BrokerError.
    """
    if any("callback_url" in event.controls for event in events):
        spec = spec_of(route).callback
        if spec is None or not spec.allow_request:
            raise Problem(403, "callback_forbidden", f"route {route.route} takes no callback from a request")
    reserved = {event.reserved for event in events}
    made = [_envelope(route, tenant, event) for event in events]
    entries_of = [encode(envelope, payload=event.text) for envelope, event in zip(made, events, strict=True)]
    await gateway.pressure.admit(route, tenant, [e.event_id for e in made if e.event_id not in reserved])
    requests = [
        _request(route, envelope, event, await _lightened(gateway, envelope, fields))
        for envelope, event, fields in zip(made, events, entries_of, strict=True)
    ]
    accepted = []
    entries = await gateway.broker.publisher.publish_many(requests)
    for event, envelope, entry in zip(events, made, entries, strict=True):
        if isinstance(entry, BrokerError):
            raise entry
        if not entry.new and event.digest is not None:
            kept = await gateway.broker.runs.digest(keys_of(route), envelope.event_id)
            if kept is not None and kept != event.digest:
                raise Problem(422, "idempotency_key_reused", "this Idempotency-Key was used for another request")
        accepted.append(Accepted(envelope.event_id, envelope.root_id, entry.new))
    return accepted


def digest_of(body: bytes) -> str:
    """What tells one body from another."""
    return hashlib.sha256(body).hexdigest()


def _envelope(route: RouteEntry, tenant: str | None, event: Incoming) -> EventEnvelope:
    controls, now = event.controls, time.time_ns() // 1_000_000
    event_id = _event_id(route, tenant, event)
    expires, timestamp = controls.get("expires_at"), controls.get("timestamp")
    expires_at = read_time(expires, field="expires_at") if expires else None
    if expires_at is not None and expires_at <= now:
        raise Expired("expires_at: the event has expired already", field="expires_at")
    return EventEnvelope(
        event_id=event_id,
        root_id=event_id,
        idempotency_key=event_id,
        tenant_id=tenant,
        timestamp=read_time(timestamp, field="timestamp") if timestamp else now,
        expires_at=expires_at,
        payload=event.payload,
        attributes=event.attributes,
        event_type=controls.get("event_type", ""),
        source=controls.get("source", ""),
        session_id=controls.get("session_id"),
        traceparent=controls.get("traceparent"),
        tracestate=controls.get("tracestate"),
        tokens=controls.get("tokens") == "true",
        callback_url=controls.get("callback_url"),
    )


def _event_id(route: RouteEntry, tenant: str | None, event: Incoming) -> str:
    if event.reserved is not None:
        return event.reserved
    if event.key is not None:
        return _derived(tenant, route.route, "key", event.key)
    if event.event_id is None:
        return new_event_id()
    # Two tenants may use the same id: one must not take the other's event for its own.
    return event.event_id if tenant is None else _derived(tenant, route.route, "id", event.event_id)


def _derived(*parts: str | None) -> str:
    return str(uuid.uuid5(_REQUESTS, json.dumps(parts, ensure_ascii=True)))


async def _lightened(gateway: Gateway, envelope: EventEnvelope, fields: Fields) -> Fields:
    """The entry's fields; a payload that is too large for a stream lies in the archive, if there is one."""
    name, text = fields[-1]
    limit = gateway.settings.gateway.inline_limit
    if gateway.archive is None or name != "payload" or 4 * len(text) <= limit:
        return fields
    content = text.encode() if isinstance(text, str) else text
    if len(content) <= limit:
        return fields
    reference = await gateway.archive.put(envelope.tenant_id, content)
    return encode(envelope.model_copy(update={"payload": {}, "payload_ref": str(reference)}))


def _request(route: RouteEntry, envelope: EventEnvelope, event: Incoming, fields: Fields) -> PublishRequest:
    meta = RunMeta(
        route=route.route,
        version=route.version,
        root_id=envelope.root_id,
        session_id=envelope.session_id,
        tenant_id=envelope.tenant_id,
        key=envelope.idempotency_key,
        digest=event.digest,
    )
    return PublishRequest(route.stream, fields, envelope.event_id, keys_of(route), meta, event.ttl)
