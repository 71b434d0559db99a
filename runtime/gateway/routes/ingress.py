"""Events in: JSON, text, a form, or CloudEvents in their three content modes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, FastAPI, Path, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from runtime.broker.fleet import RouteEntry
from runtime.gateway import bodies, problems, uploads, views
from runtime.gateway.accepting import Incoming, accept, digest_of, of_draft, reserve, tenant_of
from runtime.gateway.auth import Principal
from runtime.gateway.deps import Gateway, gateway_of
from runtime.gateway.options import PARAMETERS, Options, options_of
from runtime.gateway.problems import Problem
from runtime.gateway.routes_known import keys_of
from runtime.gateway.waiting import wait_for_end
from shared_models import cloudevents
from shared_models.shapes import Draft
from shared_models.strict_json import dump_json

router = APIRouter(prefix="/v1", tags=["events"])

RouteName = Annotated[str, Path(description="A route's name.", max_length=200)]

_FILE = {"type": "string", "format": "binary"}
_ANY_OBJECT = {"schema": {"type": "object"}}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object", "description": "The payload."},
                "example": {"input_value": "hello"},
            },
            "text/plain": {"schema": {"type": "string", "minLength": 1, "description": "The flow's text input."}},
            uploads.KIND: {
                "schema": {
                    "type": "object",
                    "description": "Files, and the payload: as JSON in the field `payload`, or field by field.",
                    "properties": {"payload": {"type": "string"}, "files": {"type": "array", "items": _FILE}},
                }
            },
            cloudevents.STRUCTURED: _ANY_OBJECT,
            cloudevents.BATCH: {"schema": {"type": "array", "maxItems": cloudevents.MAX_BATCH}},
        },
    }
}


@router.post(
    "/routes/{route}/events",
    status_code=202,
    operation_id="send_event",
    response_model=views.EventAccepted | views.EventsAccepted,
    responses={
        200: {"description": "The run has ended in time.", "content": {"application/json": _ANY_OBJECT}},
        **problems.answers(401, 403, 404, 408, 409, 413, 415, 422, 429, 503),
    },
    openapi_extra={**_BODY, "parameters": PARAMETERS},
)
async def send_event(route: RouteName, request: Request) -> Response:
    """Send an event to a route, or a batch of CloudEvents.

    Answers 202 when the event is durable in the route's stream, never before; 200 with the run, where `wait` was asked
    for and it has ended in time.
    """
    gateway = gateway_of(request)
    principal = await gateway.auth.granted(request, "send")
    options = options_of(request, most=gateway.settings.gateway.max_wait)
    entry = await gateway.routes.get(route)
    kind = bodies.media_type(request)
    if kind == uploads.KIND:
        tenant = tenant_of(principal, options.tenant_id)
        reserved = await reserve(gateway, entry, tenant, _key(options))
        brought = await uploads.read(gateway, request, tenant)
        event = Incoming(brought, controls=options.controls, reserved=reserved)
        # Two requests with the same content have different boundaries.
        body = dump_json(brought, field="payload").encode()
        return await _one(gateway, entry, tenant, options, _keyed(event, options, body))
    body = await request.body()
    if cloudevents.is_cloud_request(kind, request.headers.keys()):
        drafts = cloudevents.read_request(kind, request.headers.items(), body)
        return await _cloud(gateway, entry, principal, options, drafts, batch=kind == cloudevents.BATCH)
    payload, text = bodies.payload(kind, body)
    tenant = tenant_of(principal, options.tenant_id)
    event = Incoming(payload, text, controls=options.controls)
    return await _one(gateway, entry, tenant, options, _keyed(event, options, body))


class Direct:
    """ASGI middleware: answers ``send_event`` before FastAPI, which only tells OpenAPI of it and would cost a tenth."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["method"] != "POST" or not (at := _EVENTS_AT.fullmatch(scope["path"])):
            await self._app(scope, receive, send)
            return
        scope["app"] = self._app
        request = Request(scope, receive, send)
        try:
            answer = await send_event(at[1], request)
        except Exception as error:  # noqa: BLE001  it says which are unforeseen
            answer = problems.answer_to(request, error)
        await answer(scope, receive, send)


_EVENTS_AT = re.compile(r"/v1/routes/([^/]+)/events")


def _keyed(event: Incoming, options: Options, body: bytes) -> Incoming:
    if options.key is None:
        return event
    return replace(event, key=_key(options), digest=digest_of(body))


def _key(options: Options) -> str | None:
    return None if options.key is None else f"request:{options.key}"


async def _one(gateway: Gateway, entry: RouteEntry, tenant: str | None, options: Options, event: Incoming) -> Response:
    (one,) = await accept(gateway, entry, tenant, [event])
    return await _answer(gateway, entry, options, views.accepted(one, entry.route))


async def _cloud(
    gateway: Gateway, entry: RouteEntry, principal: Principal, options: Options, drafts: list[Draft], *, batch: bool
) -> Response:
    if options.key is not None:
        raise Problem(422, "request_invalid", "a CloudEvent is known by its source and id; send no Idempotency-Key")
    tenants = [options.tenant_id, *(draft.attributes.get("tenantid") for draft in drafts)]
    named = [tenant for tenant in tenants if tenant is not None]
    if not all(isinstance(tenant, str) for tenant in named):
        raise Problem(422, "request_invalid", "a CloudEvent's tenantid has to be a string")
    if len(set(named)) > 1:
        raise Problem(422, "request_invalid", "the request names more than one tenant")
    tenant = tenant_of(principal, named[0] if named else None)
    events = [of_draft(draft) for draft in drafts]
    events = [replace(event, controls={**options.controls, **event.controls}) for event in events]
    done = [views.accepted(one, entry.route) for one in await accept(gateway, entry, tenant, events)]
    if batch:
        return JSONResponse(views.EventsAccepted(events=done).model_dump(), 202)
    return await _answer(gateway, entry, options, done[0])


async def _answer(gateway: Gateway, entry: RouteEntry, options: Options, told: views.EventAccepted) -> Response:
    headers = {"Location": told.status_url}
    if options.wait:
        record = await wait_for_end(gateway, keys_of(entry), told.event_id, options.wait)
        headers["Preference-Applied"] = f"wait={options.wait:g}"
        if record is not None:
            return JSONResponse(views.run_json(record), 200, headers)
    return Response(told.model_dump_json(), 202, headers, "application/json")
