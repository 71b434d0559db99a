"""Runs: what became of events, lists of them, and cancelling."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import JSONResponse

from runtime.broker.listing import RunFilter
from runtime.broker.runs import Cancelled
from runtime.errors import RunNotFound
from runtime.gateway import problems, views
from runtime.gateway.auth import Reader, Sender
from runtime.gateway.deps import GatewayDep
from runtime.gateway.found import find_run, grown_from
from runtime.gateway.problems import Problem
from runtime.gateway.routes_known import keys_of
from shared_models.controls import read_time
from shared_models.result import RunStatus

router = APIRouter(prefix="/v1", tags=["runs"])

EventId = Annotated[str, Path(description="The event's id.", max_length=256)]
RouteOf = Annotated[
    str | None, Query(description="The route, where an event runs on more than one of its stream.", max_length=200)
]
Moment = Annotated[str | None, Query(description="A time: ISO 8601, or milliseconds since 1970.", max_length=40)]

_ANY = {"content": {"application/json": {"schema": {"type": "object"}}}}


@router.get(
    "/runs",
    operation_id="list_runs",
    response_model=views.RunList,
    responses=problems.answers(401, 403, 404, 422, 503),
)
async def list_runs(
    principal: Reader,
    gateway: GatewayDep,
    *,
    route: Annotated[str | None, Query(description="Only this route.", max_length=200)] = None,
    status: Annotated[RunStatus | None, Query(description="Only runs that stand so.")] = None,
    session_id: Annotated[str | None, Query(description="Only this session.", max_length=256)] = None,
    tenant_id: Annotated[str | None, Query(description="Only this tenant.", max_length=256)] = None,
    since: Moment = None,
    until: Moment = None,
    limit: Annotated[int, Query(description="At most so many.", ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="`next` of the page before.", max_length=2000)] = None,
) -> JSONResponse:
    """List runs, those that began last first.

    A page may hold fewer than `limit` and still have a `next`: one page looks at a bounded number of runs.
    """
    wanted = RunFilter(status, session_id, tenant_id, _time(since, "since"), _time(until, "until"))
    if principal.tenant is not None:
        if tenant_id not in (None, principal.tenant):
            raise Problem(403, "tenant_forbidden", "this key is for another tenant")
        wanted = replace(wanted, tenant_id=principal.tenant)
    routes = [await gateway.routes.get(route)] if route is not None else (await gateway.routes.all()).values()
    page = await gateway.broker.runs.page([keys_of(entry) for entry in routes], wanted, count=limit, cursor=cursor)
    return JSONResponse({"runs": [views.run_json(record) for record in page.records], "next": page.next})


@router.post(
    "/runs/{event_id:path}/cancel",
    operation_id="cancel_run",
    response_model=views.RunCancelled,
    responses={
        202: {"description": "It runs; it is told to stop.", "model": views.RunCancelled},
        **problems.answers(401, 403, 404, 409, 422, 503),
    },
)
async def cancel_run(event_id: EventId, principal: Sender, gateway: GatewayDep, *, route: RouteOf = None) -> Response:
    """Cancel a run that has not ended: one that waits at once, one that runs within about a second, wherever it runs.

    A run that completes before it hears of it stays completed.
    """
    found = await find_run(gateway, principal, event_id, route)
    done = await gateway.broker.runs.cancel(keys_of(found.route), event_id)
    if done is Cancelled.ENDED:
        raise Problem(409, "run_ended", "the run has ended already")
    if done is Cancelled.UNKNOWN:
        raise RunNotFound(f"no run of event {event_id[:80]!r} is known")
    asked = done is Cancelled.ASKED
    told = views.RunCancelled(event_id=event_id, route=found.route.route, status="asked" if asked else "cancelled")
    return JSONResponse(told.model_dump(), 202 if asked else 200)


@router.get(
    "/runs/{event_id:path}",
    operation_id="get_run",
    responses={200: {"description": "The run.", **_ANY}, **problems.answers(401, 403, 404, 422, 503)},
)
async def get_run(
    event_id: EventId,
    principal: Reader,
    gateway: GatewayDep,
    *,
    route: RouteOf = None,
    lineage: Annotated[bool, Query(description="Also tell the runs that grew from it.")] = False,
) -> JSONResponse:
    """A run: its status, attempts, times, and its result or dead letter."""
    found = await find_run(gateway, principal, event_id, route)
    told: dict[str, Any] = views.run_json(found.record)
    if lineage:
        grown, partly = await grown_from(gateway, principal, found)
        told["lineage"] = [views.grown_json(one.record) for one in grown]
        told["lineage_complete"] = not partly
    return JSONResponse(told)


def _time(text: str | None, field: str) -> int | None:
    return read_time(text.strip(), field=field) if text is not None else None
