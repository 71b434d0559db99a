"""Whether the gateway lives, and whether it can serve."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from runtime.gateway import problems
from runtime.gateway.deps import GatewayDep
from runtime.gateway.problems import Problem

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, Any]:
    """The process lives."""
    return {"status": "ok"}


@router.get("/readyz", responses=problems.answers(503))
async def readyz(gateway: GatewayDep) -> dict[str, Any]:
    """Redis answers, and the gateway is not ending."""
    if gateway.ending:
        raise Problem(503, "ending", gateway.ending[0], retry_after=1)
    await gateway.broker.connection.command("PING")
    return {"status": "ready", "routes": len(await gateway.routes.all())}
