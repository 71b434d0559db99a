"""Decisions for runs that wait for a person."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from runtime.gateway import problems, views
from runtime.gateway.auth import Sender
from runtime.gateway.deps import GatewayDep
from runtime.gateway.found import find_run
from runtime.gateway.routes.runs import EventId, RouteOf
from runtime.gateway.routes_known import keys_of
from shared_models.result import Decision

router = APIRouter(prefix="/v1", tags=["runs"])


class DecisionRequest(BaseModel):
    """A person's answer to what a run asks."""

    model_config = ConfigDict(extra="forbid")

    decision: str = Field(description="One of the run's `pause.allowed`.", min_length=1, max_length=256)
    values: dict[str, Any] = Field(
        default_factory=dict,
        description="What the decision takes: for a tool call, `args` in place of its own, or a `message`.",
    )
    request_id: str | None = Field(
        default=None,
        description="The run's `pause.request_id`, where it may ask several times; else what it asks now is meant.",
        max_length=1024,
    )


@router.post(
    "/runs/{event_id:path}/resume",
    operation_id="resume_run",
    responses={
        200: {"description": "The run goes on.", "content": {"application/json": {"schema": {"type": "object"}}}},
        **problems.answers(401, 403, 404, 409, 410, 413, 422, 503),
    },
)
async def resume_run(
    event_id: EventId,
    asked: DecisionRequest,
    principal: Sender,
    gateway: GatewayDep,
    *,
    route: RouteOf = None,
) -> JSONResponse:
    """Decide what a run asks that waits for a person; it goes on at once, on any worker.

    The first decision counts: the same one again is answered as it was, another one is a conflict (409). When the time
    is up, the flow's own fallback has won (410).
    """
    found = await find_run(gateway, principal, event_id, route)
    decision = Decision(action_id=asked.decision, values=asked.values)
    keys = keys_of(found.route)
    resumed = await gateway.broker.pauses.resume(keys, event_id, decision, request_id=asked.request_id)
    return JSONResponse(views.run_json(resumed))
