"""One attempt: the flow's run under its timeout, and how a run is stopped."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Mapping
from typing import Any

import structlog

from runtime.broker.client import Broker
from runtime.engine.base import ChatHistory, Engine, Resume, RunOutput, RunRequest
from runtime.errors import RunFailed, RunTimeout
from runtime.worker import publications, variables
from runtime.worker.attachments import Attachments
from runtime.worker.board import boot_time
from runtime.worker.flights import Abort, Attempt
from runtime.worker.lanes import Lane
from runtime.worker.loop_clock import LoopClock
from runtime.worker.progress import Progress
from runtime.worker.watchdog import RunMark, current_run
from runtime.worker.work import Work
from shared_models.dead_letter import ErrorInfo
from shared_models.route import TweaksPolicy

log = structlog.get_logger("headrace.worker")

CANCEL_GRACE = 5.0
"""Seconds that a cancelled run has to end. One that swallows its cancellation is then left behind, with its slot."""


class Aborted(Exception):
    """The run was told to stop."""

    def __init__(self, why: Abort) -> None:
        super().__init__(why.value)
        self.why = why


class Execution:
    """Runs flows with an engine."""

    def __init__(
        self,
        broker: Broker,
        engine: Engine,
        clock: LoopClock,
        attachments: Attachments,
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._broker = broker
        self._engine = engine
        self._clock = clock
        self._attachments = attachments
        self._environ = environ

    async def run(self, work: Work, resume: Resume | None = None) -> RunOutput:
        """One attempt. Raises Aborted, RunTimeout, and whatever the run raises. ``resume``: of a run that waited."""
        request = self._request(work, resume)
        history = _History(self._broker, work.flight.lane, request.tenant_id)
        mark = RunMark(work.claim.token, boot_time() + work.active.route.spec.timeout)
        wanted = request.stream or work.followed
        progress = Progress(self._broker.feeds, work.claim.keys, work.claim.event_id, wanted=wanted)
        context = contextvars.copy_context()
        context.run(current_run.set, mark)
        run = asyncio.create_task(
            self._attempt(work, request, history, progress),
            name=f"run:{work.claim.event_id}",
            context=context,
        )
        work.flight.attempt = Attempt(work.claim, progress)
        try:
            while not run.done() and work.flight.abort is None and (left := self._left(mark)) > 0:
                await work.flight.watch(run, left)
            if run.done():
                return self._result(run, work, mark)
            if work.flight.abort is Abort.LOST:
                progress.drop()  # not only once it has ended: it may take its time to
            await _cancel(run, work)
            if work.flight.abort is not None:
                raise Aborted(work.flight.abort)
            raise _timed_out(work)
        finally:
            work.flight.attempt = None
            if not run.done():
                run.cancel()
            if work.flight.abort is Abort.LOST:
                progress.drop()
            await progress.close()

    async def _attempt(self, work: Work, request: RunRequest, history: ChatHistory, progress: Progress) -> RunOutput:
        """Run the flow, with the event's files beside it; what it takes to get them is the run's own time."""
        if not self._attachments.named(request):
            return await self._engine.run(work.active.flow, request, history, progress.emit)
        async with self._attachments.files(request) as ready:
            return await self._engine.run(work.active.flow, ready, history, progress.emit)

    def _left(self, mark: RunMark) -> float:
        """Seconds of its own that a run has left: what others held the loop up was not its time."""
        return mark.deadline + self._clock.lag_of(mark.token, mark.started) - boot_time()

    def _result(self, run: asyncio.Task[RunOutput], work: Work, mark: RunMark) -> RunOutput:
        if run.cancelled():
            raise RunFailed(
                ErrorInfo(code="run_cancelled", message="a component of the flow cancelled the run", retryable=True)
            )
        error = run.exception()
        if error is not None and self._left(mark) < 0:
            # It blocked the loop, so that the loop could not keep its time; the watchdog has interrupted it.
            raise _timed_out(work) from error
        return run.result()

    def _request(self, work: Work, resume: Resume | None) -> RunRequest:
        route, flow, envelope = work.active.route, work.active.flow, work.envelope
        assert envelope is not None  # noqa: S101  there is one where there is no poison
        spec, scope = route.spec, None
        text, session = None, envelope.session_id
        if spec.input or spec.session:
            scope = publications.scope_of(envelope)
            text = scope.text(spec.input, where=f"route {route.name}, input") if spec.input else None
            session = scope.text(spec.session, where=f"route {route.name}, session") if spec.session else session
        brought = variables.brought_by(envelope.payload, webhook=flow.webhook)
        return RunRequest(
            event_id=envelope.event_id,
            payload=envelope.payload,
            tenant_id=envelope.tenant_id,
            session_id=session,
            input_text=text,
            variables=variables.resolve(route, brought, self._environ),
            brought=frozenset(brought),
            tweaks_allowed=_tweaks(spec.tweaks),
            attempt=work.attempts,
            stream=envelope.tokens or spec.tokens,
            without=spec.engine.accelerators.off,
            resume=resume,
        )


class _History:
    """A route's committed chat history for one tenant."""

    def __init__(self, broker: Broker, lane: Lane, tenant: str | None) -> None:
        self._broker = broker
        self._lane = lane
        self._tenant = tenant

    async def load(self, session: str) -> list[Mapping[str, Any]]:
        return list(await self._broker.chat.load(self._lane.keys, tenant=self._tenant, session=session))


def _tweaks(policy: TweaksPolicy | tuple[str, ...]) -> bool | tuple[str, ...]:
    if isinstance(policy, TweaksPolicy):
        return () if policy is TweaksPolicy.DECLARED else policy is TweaksPolicy.PERMISSIVE
    return policy


async def _cancel(run: asyncio.Task[RunOutput], work: Work) -> None:
    run.cancel()
    await asyncio.wait({run}, timeout=CANCEL_GRACE)
    if not run.done():
        log.warning("run.uncancellable", route=work.active.route.name, event_id=work.claim.event_id, grace=CANCEL_GRACE)
        run.add_done_callback(lambda done: done.cancelled() or done.exception())
        work.flight.left = run
    elif not run.cancelled():
        run.exception()


def _timed_out(work: Work) -> RunTimeout:
    limit = work.active.route.spec.timeout
    return RunTimeout(
        ErrorInfo(
            code="run_timeout",
            message=f"the run took longer than the route's timeout of {limit:g} s and was stopped",
            retryable=True,
        )
    )
