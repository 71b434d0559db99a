"""How much there is to do, in one number: what an autoscaler asks for."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from runtime.broker.fleet import RouteEntry
from runtime.gateway import problems
from runtime.gateway.auth import Reader
from runtime.gateway.deps import Gateway, GatewayDep
from runtime.gateway.problems import RETRY_AFTER, Problem
from runtime.gateway.routes.ingress import RouteName
from runtime.gateway.routes_known import keys_of
from shared_models.names import callbacks_route


class Load(BaseModel):
    """What workers have to do, counted now."""

    load: int = Field(description="waiting + running + delayed: 0 only where there is nothing to do.")
    waiting: int = Field(description="Events that a worker may take now.")
    running: int = Field(description="Events in a worker's hands.")
    delayed: int = Field(description="Events that are put off: retries, and runs that wait for a person.")
    blocked: int = Field(description="Routes that are blocked; their events are among those that wait.")


def _of_all_tenants(principal: Reader) -> None:
    if principal.tenant is not None:
        raise Problem(403, "tenant_forbidden", "the load is of all tenants; this key is for one")


router = APIRouter(
    prefix="/v1",
    tags=["load"],
    dependencies=[Depends(_of_all_tenants)],
    responses=problems.answers(401, 403, 422, 503),
)


@router.get("/routes/{route}/load", operation_id="get_route_load", responses=problems.answers(404))
async def route_load(route: RouteName, gateway: GatewayDep) -> Load:
    """The load of one route, its callbacks included. What cannot be counted is answered 503, never as 0."""
    entry = await gateway.routes.get(route)
    callbacks = (await gateway.routes.all()).get(callbacks_route(entry.route))
    return await _load(gateway, [entry] if callbacks is None else [entry, callbacks])


@router.get("/load", operation_id="get_load")
async def load(gateway: GatewayDep) -> Load:
    """The load of all routes together, for workers that run them all. 503 while no worker has told of a route."""
    routes = list((await gateway.routes.all()).values())
    if not routes:
        # Nobody can know what waits: answered with 0, no worker would ever come to tell.
        raise Problem(503, "load_unknown", "no worker has registered a route yet", retry_after=RETRY_AFTER)
    return await _load(gateway, routes)


async def _load(gateway: Gateway, routes: Sequence[RouteEntry]) -> Load:
    keys = [keys_of(route) for route in routes]
    counts = await gateway.broker.streams.counts(keys, [route.dead_letters for route in routes])
    blocked = await gateway.broker.streams.blocked(keys)
    waiting = [count.waiting for count in counts]
    known = [number for number in waiting if number is not None]
    if len(known) < len(waiting):
        lost = routes[waiting.index(None)].route
        raise Problem(503, "load_unknown", f"what waits for {lost!r} cannot be counted now", retry_after=RETRY_AFTER)
    running, delayed = sum(count.running for count in counts), sum(count.delayed for count in counts)
    return Load(
        load=sum(known) + running + delayed,
        waiting=sum(known),
        running=running,
        delayed=delayed,
        blocked=sum(block is not None for block in blocked),
    )
