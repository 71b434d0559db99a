"""Delivers callbacks: an engine beside the engine, whose flows are addresses.

A callback is a POST in the Standard Webhooks form. 2xx is delivered; 410 gives it up; anything else, and no answer, is
tried again on the route's table, not before a Retry-After is over.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from runtime.engine.base import ChatHistory, Emit, Engine, FlowSource, LoadedFlow, RunOutput, RunRequest
from runtime.engine.faults import retry_after_of
from runtime.errors import EventFault, RouteFault, RunFailed
from runtime.secret_sources import live_secrets
from runtime.settings import CallbackSettings
from runtime.worker.outbound import AddressRefused, Answer, NotAnswered, post
from shared_models import webhooks
from shared_models.dead_letter import ErrorInfo
from shared_models.result import Output, OutputKind, RunResult
from shared_models.route import CallbackSpec
from shared_models.strict_json import dump_json

GONE = 410


@dataclass(frozen=True, slots=True)
class CallbackFlow:
    """What a callback route runs."""

    version: str
    spec: CallbackSpec
    webhook: bool = True
    runs_others: bool = False


class Deliverer:
    """Another engine, and callbacks."""

    def __init__(self, engine: Engine, settings: CallbackSettings, environ: Mapping[str, str] = os.environ) -> None:
        self._engine = engine
        self._settings = settings
        self._environ = environ
        self._tls: ssl.SSLContext | None = None

    async def prepare(self, *, concurrency: int) -> None:
        """As the engine does."""
        await self._engine.prepare(concurrency=concurrency)

    async def load(self, source: FlowSource) -> LoadedFlow:
        """As the engine does; a callback needs nothing to be loaded."""
        if source.callback is not None:
            return CallbackFlow(source.version, source.callback)
        return await self._engine.load(source)

    async def run(self, flow: LoadedFlow, request: RunRequest, history: ChatHistory, emit: Emit) -> RunOutput:
        """Run a flow, or deliver a callback. Raises as the engine does."""
        if not isinstance(flow, CallbackFlow):
            return await self._engine.run(flow, request, history, emit)
        url, message = request.payload.get("url"), request.payload.get("message")
        if not isinstance(url, str) or not isinstance(message, Mapping):
            raise EventFault(ErrorInfo(code="callback_invalid", message="a callback's payload has a url and a message"))
        body = dump_json(message, field="message").encode()
        answer = await self._post(flow, url, body, self._signed(flow, request.event_id, body))
        _judge(answer, _host(url))
        told = {"host": _host(url), "status": answer.status}
        output = Output(id="callback", name="Callback", type="Callback", kind=OutputKind.DATA, data=told)
        return RunOutput(RunResult(outputs=[output]))

    def set_siblings(self, sources: Mapping[str, FlowSource]) -> None:
        """As the engine does."""
        self._engine.set_siblings(sources)

    async def close(self) -> None:
        """As the engine does."""
        await self._engine.close()

    def _signed(self, flow: CallbackFlow, message_id: str, body: bytes) -> dict[str, str]:
        """The headers. Without a secret nothing is sent: the route waits for one."""
        own = self._settings.secret.get_secret_value().split(",") if self._settings.secret else []
        named = flow.spec.secrets
        secrets = live_secrets(named, self._environ) if named else [part.strip() for part in own if part.strip()]
        if not secrets:
            what = "none of the callback's secrets is set" if named else "the callback names no secrets"
            raise _unusable(f"{what}; set one, or HEADRACE_CALLBACKS__SECRET for routes that name none")
        try:
            signed = webhooks.sign(message_id, int(time.time()), body, secrets)
        except ValueError as error:
            raise _unusable(str(error)) from error
        return {**signed, "Content-Type": "application/json", "User-Agent": "Headrace"}

    async def _post(self, flow: CallbackFlow, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        settings, host = self._settings, _host(url)
        try:
            return await post(
                url,
                body,
                headers,
                timeout=settings.timeout,
                allow_private=settings.allow_private,
                context=self._tls,
            )
        except NotAnswered as error:
            info = ErrorInfo(code="callback_failed", message=f"{host} {error}", retryable=True)
            raise RunFailed(info) from error
        except AddressRefused as error:
            message = (
                f"{host} {error}: callbacks go to public addresses, over TLS, without HEADRACE_CALLBACKS__ALLOW_PRIVATE"
            )
            info = ErrorInfo(code="callback_refused", message=message)
            # What the operator has written can be mended, and then all that waits is delivered.
            raise (RouteFault(info) if url == flow.spec.url else EventFault(info)) from error


def _judge(answer: Answer, host: str) -> None:
    """Raise where it was not delivered."""
    status = answer.status
    if 200 <= status < 300:
        return
    # Nothing of its body, nor where it would redirect to: what an inner server says is nobody's business.
    if status == GONE:
        raise EventFault(
            ErrorInfo(
                code="callback_gone",
                message=f"{host} answered 410: it wants no more callbacks; remove it from the route or the requests",
                provider_status=status,
            )
        )
    raise RunFailed(
        ErrorInfo(
            code="callback_failed",
            message=f"{host} answered {status}",
            provider_status=status,
            retry_after=retry_after_of(answer.headers),
            retryable=True,
        )
    )


def _unusable(why: str) -> RouteFault:
    return RouteFault(ErrorInfo(code="callback_secret_missing", message=why))


def _host(url: str) -> str:
    """Whom a message may name: the rest of a URL may hold secrets."""
    try:
        return urlsplit(url).hostname or "the callback"
    except ValueError:
        return "the callback"
