"""Webhooks of third parties: no API key, but a signature."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from runtime.gateway import hooks, problems, views
from runtime.gateway.accepting import accept
from runtime.gateway.deps import GatewayDep
from runtime.gateway.problems import Problem
from runtime.gateway.routes.ingress import RouteName
from runtime.gateway.routes_known import spec_of

router = APIRouter(prefix="/v1", tags=["events"])

_ANYTHING = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}


@router.post(
    "/webhooks/{route}",
    status_code=202,
    operation_id="receive_webhook",
    response_model=views.EventAccepted,
    responses={
        200: {"description": "The sender only tried the address.", "content": {"application/json": {"schema": {}}}},
        **problems.answers(401, 403, 404, 408, 409, 413, 422, 429, 503),
    },
    openapi_extra=_ANYTHING,
)
async def receive_webhook(route: RouteName, request: Request, gateway: GatewayDep) -> Response:
    """Take a webhook, signed as the route's spec says: Standard Webhooks, GitHub, Stripe or Slack.

    A message that was taken before, by its id, is not an event again.
    """
    entry = await gateway.routes.get(route)
    spec = spec_of(entry).webhook
    if spec is None:
        raise Problem(404, "webhook_not_configured", f"route {entry.route} takes no webhooks: its spec has no webhook")
    body, headers = await request.body(), dict(request.headers)
    signed = hooks.checked(spec, entry, headers, body)
    if (told := hooks.answered_here(spec, headers, body)) is not None:
        return JSONResponse(told)
    event = hooks.read(spec, signed, headers, body, gateway.settings.retention.runs)
    (one,) = await accept(gateway, entry, spec.tenant, [event])
    answer = views.accepted(one, entry.route)
    return JSONResponse(answer.model_dump(), 202, {"Location": answer.status_url})
