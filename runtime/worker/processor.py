"""One delivery, from its reading to its settlement. Read it top to bottom: `process` is the path of every event.

    decode -> begin -> run under the timeout -> decide -> settle

Every step is a call that returns. What goes wrong becomes an Outcome in `retry.decide`, and an Outcome becomes state in
one place, the settler: nobody else acknowledges, parks or publishes.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from runtime.broker.client import Broker
from runtime.broker.delivery import Delivery, Grant, Verdict
from runtime.broker.gate import Claim
from runtime.broker.outcome import Completed, DeadLettered, Outcome, Released, RunMeta
from runtime.engine.base import Engine, RunOutput, RunRequest
from runtime.errors import EventFault, GroupMissing, RunFailed, RunTimeout
from runtime.expressions import ExpressionFailed
from runtime.settings import Settings
from runtime.worker import publications, variables
from runtime.worker.board import boot_time
from runtime.worker.flights import Abort, Flight
from runtime.worker.lanes import ActiveRoute, Lane
from runtime.worker.lease import Lease
from runtime.worker.retry import decide
from runtime.worker.settler import Settler, Work, backoff, code_of, message_of, pause
from runtime.worker.watchdog import RunMark, current_run
from shared_models.codec import decode, peek_event_id
from shared_models.dead_letter import ErrorInfo
from shared_models.envelope import EventEnvelope
from shared_models.errors import HeadraceError
from shared_models.result import RunEventType
from shared_models.route import TweaksPolicy

log = structlog.get_logger("headrace.worker")

CANCEL_GRACE = 5.0
"""Seconds that a cancelled run has to end; a component that swallows its cancellation is left behind after them."""

MAX_WAIT = 5.0
"""Seconds that a duplicate of a running event waits at most before it looks again."""


class _Aborted(Exception):
    """The run was told to stop."""

    def __init__(self, why: Abort) -> None:
        super().__init__(why.value)
        self.why = why


class Processor:
    """Takes deliveries of one worker identity to their settlement."""

    def __init__(
        self,
        broker: Broker,
        engine: Engine,
        lease: Lease,
        settings: Settings,
        *,
        worker: str,
        environ: Mapping[str, str] = os.environ,
        alone: bool = False,
        ask_alone: Callable[[str, str], None] | None = None,
    ) -> None:
        self._broker = broker
        self._engine = engine
        self._lease = lease
        self._settings = settings
        self._worker = worker
        self._environ = environ
        # Where nobody can be asked for a process of its own, an entry that may have killed its worker runs here.
        self._alone = alone or ask_alone is None
        self._ask_alone = ask_alone
        self._settler = Settler(broker, settings)
        self._tokens = itertools.count(1)
        self._draw = random.Random()  # noqa: S311  jitter, not a secret

    async def process(self, flight: Flight, delivery: Delivery, active: ActiveRoute) -> None:
        """Take one delivery to its end. Returns when it is settled, or not this worker's any more."""
        work = self._decode(flight, delivery, active)
        grant = await self._begin(work)
        if grant is not None and grant.verdict is Verdict.STAGED:
            grant = await self._publish_staged(work, grant)
        if grant is not None and grant.verdict is Verdict.BLOCKED:
            flight.lane.blocked = True
        if grant is not None and grant.verdict is Verdict.ALONE and self._ask_alone is not None:
            self._ask_alone(active.route.name, delivery.entry_id)
        if grant is None or not _runs(grant):
            return
        work.attempts = grant.attempts
        outcome = await self._outcome(work, grant)
        if outcome is not None:
            await self._settler.settle(work, outcome)

    # --- decode -----------------------------------------------------------------------------------------------------

    def _decode(self, flight: Flight, delivery: Delivery, active: ActiveRoute) -> Work:
        route, lane = active.route, flight.lane
        envelope: EventEnvelope | None = None
        poison: HeadraceError | None = None
        key = event_id = peek_event_id(delivery.fields, stream=lane.keys.stream, entry_id=delivery.entry_id)
        try:
            if flight.condemned:
                raise EventFault(_lost_too_often())
            envelope = decode(
                delivery.fields,
                stream=lane.keys.stream,
                entry_id=delivery.entry_id,
                max_payload=self._settings.worker.max_payload,
                now_ms=_now(),
            )
            event_id, key = envelope.event_id, envelope.idempotency_key
            if route.spec.idempotency.key is not None:
                where = f"route {route.name}, idempotency.key"
                key = publications.scope_of(envelope).text(route.spec.idempotency.key, where=where)
                if not key.strip():  # shared by all that lack it, it would swallow every event but the first
                    raise ExpressionFailed(f"{where}: gave a blank key for this event")
        except HeadraceError as error:
            poison = error
        claim = Claim(
            keys=lane.keys,
            worker=self._worker,
            entry_id=delivery.entry_id,
            token=self._new_token(flight),
            key=key,
            event_id=event_id,
            ttl=route.spec.idempotency.ttl,
        )
        return Work(flight, delivery, active, claim, _meta(active, envelope, event_id, key), envelope, poison)

    def _new_token(self, flight: Flight) -> str:
        token = f"{self._worker}.{next(self._tokens)}"
        flight.lane.flights[flight.entry_id] = token
        return token

    # --- begin ------------------------------------------------------------------------------------------------------

    async def _begin(self, work: Work) -> Grant | None:
        """Ask for the right to run, until Redis has answered. None: not this worker's to run, or told to stop."""
        takeover, tries = "", 0
        while work.flight.abort is None:
            try:
                grant = await self._broker.gate.begin(
                    work.claim,
                    max_attempts=work.active.route.spec.retry.max_attempts,
                    wait=min(MAX_WAIT, 0.5 * 2 ** min(tries, 4)),
                    takeover=takeover,
                    meta=work.meta,
                    probe=work.delivery.probe,
                    alone=self._alone or work.poison is not None,  # what is not run harms nobody
                )
            except GroupMissing:
                # The group was destroyed under this entry: once it is back, the entry is delivered anew.
                await self._ensure_group(work.flight.lane)
                return None
            except HeadraceError as error:
                tries += 1
                await backoff(work, "begin", error, tries)
                continue
            if grant.verdict is Verdict.NO_LEASE:
                await self._lease.renew_now()
                tries += 1
                await pause(min(1.0, 0.05 * 2**tries))
                continue
            forgotten = grant.holder == self._worker and grant.token not in work.flight.lane.flights.values()
            if grant.verdict is Verdict.WAIT and forgotten and grant.token != takeover:
                takeover = grant.token
                continue
            self._log_verdict(work, grant)
            return grant
        return None

    async def _publish_staged(self, work: Work, grant: Grant) -> Grant | None:
        """Publish what a dead holder has left staged. It may be another event's, whose entry is gone: then ask anew."""
        await self._settler.finish(work, grant)
        if grant.event_id == work.claim.event_id:
            return None
        work.claim = replace(work.claim, token=self._new_token(work.flight))
        grant_now = await self._begin(work)
        # Still staged: others are at it. The entry is pending, and is looked at again.
        return None if grant_now is not None and grant_now.verdict is Verdict.STAGED else grant_now

    def _log_verdict(self, work: Work, grant: Grant) -> None:
        if grant.verdict is Verdict.RUN:
            return
        action = {
            Verdict.ENDED: "event.duplicate",
            Verdict.WAIT: "event.waits",
            Verdict.BLOCKED: "event.blocked",
            Verdict.CANCELLED: "event.cancelled",
            Verdict.NOT_MINE: "event.not_mine",
            Verdict.OVER: "event.over",
            Verdict.STAGED: "event.staged",
            Verdict.ALONE: "event.alone",
        }.get(grant.verdict, "event.not_run")
        log.info(
            action,
            route=work.active.route.name,
            event_id=work.claim.event_id,
            entry=work.claim.entry_id,
            state=grant.state or None,
            first=grant.event_id or None,
        )

    # --- run and decide ---------------------------------------------------------------------------------------------

    async def _outcome(self, work: Work, grant: Grant) -> Outcome | None:
        """What becomes of the attempt. None: it was taken away, and nothing may be written."""
        route = work.active.route
        if grant.verdict is Verdict.OVER:
            return self._with_reply(work, DeadLettered(_worker_died(grant.attempts)))
        result = None
        try:
            if work.poison is not None:
                raise work.poison
            output = await self._run(work)
            result = output.result
            assert work.envelope is not None  # noqa: S101  there is one where there is no poison
            scope = publications.scope_of(work.envelope)
            published = publications.completed(route, work.envelope, result, scope, _now())
            return Completed(result, published, output.chat)
        except _Aborted as aborted:
            return None if aborted.why is Abort.LOST else Released()
        except Exception as error:  # noqa: BLE001  the one place where an exception becomes an outcome
            outcome = decide(error, attempts=work.attempts, policy=route.spec.retry, draw=self._draw)
            log.warning(
                "run.failed",
                route=route.name,
                event_id=work.claim.event_id,
                attempt=work.attempts,
                outcome=type(outcome).__name__.lower(),
                code=code_of(outcome),
                error=message_of(outcome),
            )
            if isinstance(outcome, DeadLettered) and result is not None:
                outcome = replace(outcome, result=result)  # paid for: kept, though it could not be published
            return self._with_reply(work, outcome)

    def _with_reply(self, work: Work, outcome: Outcome) -> Outcome:
        if isinstance(outcome, DeadLettered) and work.envelope is not None:
            told = publications.dead_lettered(work.active.route, work.envelope, outcome.error, _now())
            return replace(outcome, publications=told)
        return outcome

    async def _run(self, work: Work) -> RunOutput:
        request = self._request(work)
        history = _History(self._broker, work.flight.lane, request.tenant_id)
        limit = work.active.route.spec.timeout
        mark = RunMark(work.claim.token, boot_time() + limit)
        context = contextvars.copy_context()
        context.run(current_run.set, mark)
        run = asyncio.create_task(
            self._engine.run(work.active.flow, request, history, _quiet),
            name=f"run:{work.claim.event_id}",
            context=context,
        )
        stop = asyncio.create_task(work.flight.aborted(), name=f"abort:{work.claim.event_id}")
        try:
            await asyncio.wait({run, stop}, timeout=limit, return_when="FIRST_COMPLETED")
            if run.done():
                return _result(run, work, mark)
            await _cancel(run)
            if work.flight.abort is not None:
                raise _Aborted(work.flight.abort)
            raise _timed_out(work)
        finally:
            stop.cancel()
            if not run.done():
                run.cancel()

    def _request(self, work: Work) -> RunRequest:
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
            without=spec.engine.accelerators.off,
        )

    # --- helpers ----------------------------------------------------------------------------------------------------

    async def _ensure_group(self, lane: Lane) -> None:
        try:
            await self._broker.streams.ensure_group(lane.keys)
        except HeadraceError as error:
            log.warning("group.not_created", route=lane.name, code=error.code, error=error.message)
        lane.hungry = lane.unsure = True


class _History:
    """A route's committed chat history for one tenant."""

    def __init__(self, broker: Broker, lane: Lane, tenant: str | None) -> None:
        self._broker = broker
        self._lane = lane
        self._tenant = tenant

    async def load(self, session: str) -> list[Mapping[str, Any]]:
        return list(await self._broker.chat.load(self._lane.keys, tenant=self._tenant, session=session))


def _quiet(kind: RunEventType, data: Mapping[str, Any]) -> None:
    """Progress that nobody has asked for."""


def _runs(grant: Grant) -> bool:
    return grant.verdict in (Verdict.RUN, Verdict.OVER)


def _meta(active: ActiveRoute, envelope: EventEnvelope | None, event_id: str, key: str) -> RunMeta:
    if envelope is None:
        return RunMeta(route=active.route.name, version=active.route.version, root_id=event_id)
    return RunMeta(
        route=active.route.name,
        version=active.route.version,
        root_id=envelope.root_id,
        parent_id=envelope.parent_id,
        step_index=envelope.step_index,
        session_id=envelope.session_id,
        tenant_id=envelope.tenant_id,
        key=key,
        timestamp=envelope.timestamp,
    )


def _tweaks(policy: TweaksPolicy | tuple[str, ...]) -> bool | tuple[str, ...]:
    if isinstance(policy, TweaksPolicy):
        return () if policy is TweaksPolicy.DECLARED else policy is TweaksPolicy.PERMISSIVE
    return policy


def _result(run: asyncio.Task[RunOutput], work: Work, mark: RunMark) -> RunOutput:
    if run.cancelled():
        raise RunFailed(
            ErrorInfo(code="run_cancelled", message="a component of the flow cancelled the run", retryable=True)
        )
    error = run.exception()
    if error is not None and boot_time() > mark.deadline:
        # It blocked the loop, so that the loop could not keep its time; the watchdog has interrupted it.
        raise _timed_out(work) from error
    return run.result()


async def _cancel(run: asyncio.Task[RunOutput]) -> None:
    run.cancel()
    await asyncio.wait({run}, timeout=CANCEL_GRACE)
    if not run.done():
        log.warning("run.uncancellable", task=run.get_name(), grace=CANCEL_GRACE)
        run.add_done_callback(lambda done: done.cancelled() or done.exception())
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


def _lost_too_often() -> ErrorInfo:
    return ErrorInfo(
        code="worker_died",
        message="one worker process after the other died with this entry before it began; it was not decoded",
    )


def _worker_died(attempts: int) -> ErrorInfo:
    return ErrorInfo(
        code="worker_died",
        message=f"the worker process died during each of {attempts} attempts; the flow may crash it (memory, os._exit)",
    )


def _now() -> int:
    return time.time_ns() // 1_000_000
