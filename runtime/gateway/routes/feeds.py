"""The events of a run as they happen (Server-Sent Events)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response

from runtime.broker.feeds import FROM_START
from runtime.gateway import problems
from runtime.gateway.auth import Reader
from runtime.gateway.deps import GatewayDep
from runtime.gateway.found import find_run
from runtime.gateway.problems import Problem
from runtime.gateway.routes.runs import EventId, RouteOf
from runtime.gateway.telling import EventStream, Teller, cursor, is_told, line_id

router = APIRouter(prefix="/v1", tags=["runs"])

_HEADERS = {"X-Accel-Buffering": "no"}
"""A proxy in front is not to keep events back."""


@router.get(
    "/runs/{event_id:path}/events",
    operation_id="follow_run",
    response_class=EventStream,
    responses={
        200: {"description": "Events as they come.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
        204: {"description": "The run has ended, and all of it was told."},
        **problems.answers(401, 403, 404, 422, 503),
    },
)
async def follow_run(
    event_id: EventId,
    request: Request,
    principal: Reader,
    gateway: GatewayDep,
    *,
    route: RouteOf = None,
    follow: Annotated[Literal["lineage"] | None, Query(description="Also what grows from the run.")] = None,
    last_event_id: Annotated[
        str | None, Header(description="The id of the last event seen.", max_length=20_000)
    ] = None,
    last_event: Annotated[
        str | None, Query(alias="last_event_id", description="As the header Last-Event-ID.", max_length=10_000)
    ] = None,
) -> Response:
    """Follow a run: an event of each kind of its feed, then `end`.

    After a break go on with `Last-Event-ID`: nothing is lost or told twice. What is not kept is told as a `gap`.
    """
    if gateway.ending:
        raise Problem(503, "ending", gateway.ending[0], retry_after=1)
    found = await find_run(gateway, principal, event_id, route)
    text = last_event_id or last_event
    if follow is not None:
        start = cursor(text)
    else:
        after = line_id(text)
        start = [(found.route.route, event_id, after)] if after is not None else None
    if start is not None and await is_told(gateway, start):
        return Response(status_code=204)  # a browser then comes no more
    start = start or [(found.route.route, event_id, FROM_START)]

    def check() -> Awaitable[object]:
        return gateway.auth.granted(request, "read")

    teller = Teller(gateway, principal, start, root=event_id, lineage=follow is not None, check=check)
    return EventStream(teller.events(), headers=_HEADERS)
