"""The application: the routers, the errors, the borders."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from runtime.gateway import problems
from runtime.gateway.auth import needs_keys
from runtime.gateway.borders import Borders
from runtime.gateway.deps import Gateway
from runtime.gateway.openapi import document
from runtime.gateway.routes import feeds, health, ingress, load, resume, runs, webhooks

TITLE = "Headrace gateway"

_ASKED = ["Authorization", "X-API-Key", "Content-Type", "Idempotency-Key", "Prefer", "Last-Event-ID", "traceparent"]
_TOLD = ["Location", "Retry-After", "Preference-Applied"]
"""Headers that a page of an allowed origin may send, and those that it may read."""


def create_app(gateway: Gateway) -> ASGIApp:
    """The ASGI application of a gateway: the borders, what answers events itself, and FastAPI for all else."""
    app = FastAPI(
        title=TITLE,
        version="1",
        description="Send events to Langflow flows, follow their runs.",
        redoc_url=None,
        # A redirect would be made of the Host that a client has sent, and of http:// behind a proxy that speaks TLS.
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    problems.install(app)
    for module in (health, ingress, load, webhooks, feeds, runs, resume):
        app.include_router(module.router)
    made: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not made:
            made.update(document(app, keys=needs_keys(gateway.settings.gateway)))
        return made

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's own guide extends the document
    bordered = Borders(ingress.Direct(app), settings=gateway.settings.gateway)
    if not (origins := gateway.settings.gateway.origins):
        return bordered
    # The outermost, so that a refusal too can be read by a page.
    return CORSMiddleware(
        bordered,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=_ASKED,
        expose_headers=_TOLD,
        max_age=600,
    )
