"""Every error answer is a problem document (RFC 9457), with the same ``code`` that logs and dead letters carry."""

from __future__ import annotations

import http
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from runtime.errors import (
    ArchiveUnavailable,
    BrokerError,
    BrokerUnavailable,
    DecisionError,
    DecisionInvalid,
    PauseOver,
    PublishRefused,
    RouteNotFound,
    RunNotFound,
)
from runtime.telemetry import logs
from shared_models.errors import ContractError, HeadraceError, PayloadTooLarge

MEDIA_TYPE = "application/problem+json"

RETRY_AFTER = 2
"""Seconds after which a client may try again where Redis is away."""

_LOG = logs.get_logger("headrace.gateway")

_STATUS: tuple[tuple[type[HeadraceError], int], ...] = (
    (PayloadTooLarge, 413),
    (ContractError, 422),
    (RouteNotFound, 404),
    (BrokerUnavailable, 503),
    (ArchiveUnavailable, 503),
    (PublishRefused, 409),
    (RunNotFound, 404),
    (DecisionInvalid, 422),
    (PauseOver, 410),
    (DecisionError, 409),
    (BrokerError, 500),
)
"""The first class that an error is of decides; what is of none is a fault of ours."""

_CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "payload_too_large",
    415: "unsupported_media_type",
    422: "request_invalid",
    503: "unavailable",
}


class Problem(HTTPException):
    """An error answer: raise it anywhere below the app. ``retry_after`` is in seconds, and a header too."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        told = dict(headers or {})
        if retry_after is not None:
            told["Retry-After"] = str(max(1, -int(-retry_after // 1)))
        super().__init__(status, detail=detail, headers=told)
        self.code = code
        self.retry_after = retry_after
        self.more = dict(more or {})


class ProblemDocument(BaseModel):
    """An error answer as OpenAPI tells it."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str | None = None
    retry_after: float | None = None


def install(app: FastAPI) -> None:
    """Answer every error of an app as a problem."""
    app.add_exception_handler(HTTPException, _handle)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HeadraceError, _handle)
    app.add_exception_handler(Exception, _handle)


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What an operation's ``responses`` say of these error statuses."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    return {
        status: {
            "description": http.HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        for status in sorted(statuses)
    }


def response(problem: Problem, path: str | None = None) -> JSONResponse:
    """The answer for a problem."""
    body: dict[str, Any] = {
        "type": f"urn:headrace:problem:{problem.code}",
        "title": http.HTTPStatus(problem.status_code).phrase,
        "status": problem.status_code,
        "detail": problem.detail,
        "code": problem.code,
    }
    if path is not None:
        body["instance"] = path
    if problem.retry_after is not None:
        body["retry_after"] = problem.retry_after
    return JSONResponse({**body, **problem.more}, problem.status_code, problem.headers, MEDIA_TYPE)


def of_error(error: HeadraceError) -> Problem:
    """The problem that an error of ours is to a client."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    if isinstance(error, BrokerUnavailable):
        # The message may name the server's address, which is no client's business.
        return Problem(503, error.code, "Redis cannot be used now; try again", retry_after=RETRY_AFTER)
    if isinstance(error, ArchiveUnavailable):
        _LOG.error("archive.failed", error=error.message)
        return Problem(503, error.code, "the archive cannot be used now; try again", retry_after=RETRY_AFTER)
    if status == 500:
        _LOG.error("gateway.failed", code=error.code, reason=error.message)
        return Problem(500, error.code, "the request could not be carried out; the gateway's log says why")
    more = {"field": error.field} if isinstance(error, ContractError) and error.field else None
    return Problem(status, error.code, error.message, more=more)


def answer_to(request: Request, error: Exception) -> JSONResponse:
    """The answer to a request that failed so."""
    if isinstance(error, HeadraceError):
        error = of_error(error)
    elif isinstance(error, ClientDisconnect):  # nobody reads this
        error = Problem(400, "client_gone", "the client has closed the connection")
    elif not isinstance(error, HTTPException):
        _LOG.error("gateway.failed", code="internal_error", path=request.url.path, exc_info=error)
        error = Problem(500, "internal_error", "the gateway failed; its log says why")
    if not isinstance(error, Problem):
        code = _CODES.get(error.status_code, "error")
        error = Problem(error.status_code, code, str(error.detail), headers=error.headers)
    return response(error, request.url.path)


async def _handle(request: Request, error: Exception) -> JSONResponse:
    return answer_to(request, error)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101  it is registered for this class alone
    # Never the value: a client may have put a secret in the wrong place.
    faults = [{"at": ".".join(str(part) for part in e["loc"]), "reason": e["msg"]} for e in error.errors()]
    detail = "; ".join(f"{fault['at']}: {fault['reason']}" for fault in faults[:5])
    return response(Problem(422, "request_invalid", detail, more={"errors": faults[:20]}), request.url.path)
