"""The application: the routers, the errors, the borders."""

from __future__ import annotations

from fastapi import FastAPI

from runtime.gateway import problems
from runtime.gateway.deps import Gateway
from runtime.gateway.routes import health, ingress

TITLE = "Headrace gateway"


def create_app(gateway: Gateway) -> FastAPI:
    """The ASGI application of a gateway."""
    app = FastAPI(
        title=TITLE,
        version="1",
        description="Send events to Langflow flows, follow their runs.",
        redoc_url=None,
        responses={},
    )
    app.state.gateway = gateway
    problems.install(app)
    for module in (health, ingress):
        app.include_router(module.router)
    return app
