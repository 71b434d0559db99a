"""Finding a run among the routes, for who may see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.broker.fleet import RouteEntry
from runtime.errors import RunNotFound
from runtime.gateway.auth import Principal
from runtime.gateway.deps import Gateway
from runtime.gateway.routes_known import keys_of
from shared_models.result import RunRecord

MAX_LINEAGE = 200
"""Runs of a lineage that are told; what grew beyond is left out, and that is said."""


@dataclass(frozen=True, slots=True)
class Found:
    """A run and the route that it is of."""

    route: RouteEntry
    record: RunRecord


async def find_run(gateway: Gateway, principal: Principal, event_id: str, route: str | None = None) -> Found:
    """The run of an event. Raises RunNotFound where there is none that the principal may see."""
    routes = [await gateway.routes.get(route)] if route is not None else list((await gateway.routes.all()).values())
    records = await gateway.broker.runs.records([(keys_of(entry), event_id) for entry in routes])
    for entry, record in zip(routes, records, strict=True):
        if record is not None and principal.sees(record.tenant_id):
            return Found(entry, await gateway.broker.runs.answered(keys_of(entry), record))
    # The same, whether it is unknown or another tenant's.
    raise RunNotFound(f"no run of event {event_id[:80]!r} is known; records are kept for some days")


async def grown_from(gateway: Gateway, principal: Principal, first: Found) -> tuple[list[Found], bool]:
    """The runs that grew from one, level by level; and whether some are left out."""
    routes = await gateway.routes.all()
    readers: dict[str, list[RouteEntry]] = {}
    for entry in routes.values():
        readers.setdefault(entry.stream, []).append(entry)
    found: list[Found] = []
    level = [first]
    while level:
        wanted = [
            (entry, published.event_id)
            for one in level
            for published in one.record.published
            for entry in readers.get(published.stream, ())
        ]
        room = MAX_LINEAGE - len(found)
        level = await _visible(gateway, principal, wanted[:room])
        found += level
        if len(wanted) > room:
            return found, True
    return found, False


async def _visible(gateway: Gateway, principal: Principal, wanted: Sequence[tuple[RouteEntry, str]]) -> list[Found]:
    records = await gateway.broker.runs.records([(keys_of(entry), event_id) for entry, event_id in wanted])
    pairs = zip(wanted, records, strict=True)
    return [Found(entry, record) for (entry, _), record in pairs if record and principal.sees(record.tenant_id)]
