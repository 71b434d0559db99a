"""Runs that wait for a person: put aside with what the engine keeps of them, and taken up again."""

from __future__ import annotations

import json

from pydantic import ValidationError

from runtime.broker.client import Broker
from runtime.broker.delivery import Grant
from runtime.broker.outcome import Suspended
from runtime.engine.base import Resume, RunPaused
from runtime.errors import EventFault
from runtime.settings import Settings
from runtime.worker.execution import Aborted
from runtime.worker.flights import Abort
from runtime.worker.sealing import Seal
from runtime.worker.settler import Settler
from runtime.worker.work import Work
from shared_models.dead_letter import ErrorInfo
from shared_models.errors import HeadraceError
from shared_models.result import Decision, Pause


class Resumption:
    """Suspends and resumes runs of one worker identity."""

    def __init__(self, broker: Broker, settler: Settler, settings: Settings) -> None:
        self._broker = broker
        self._settler = settler
        self._longest = settings.retention.waiting
        key = settings.worker.checkpoint_key
        self._seal = Seal(key.get_secret_value() if key else None)

    def suspended(self, work: Work, paused: RunPaused) -> Suspended:
        """The outcome of a run that asks a person. It waits as long as the flow says, and never for ever."""
        about = json.dumps({"pause": paused.pause.model_dump()}).encode()
        kept = self._seal.seal(about + b"\n" + paused.state, run=_run(work))
        wait = self._longest if paused.timeout is None else min(paused.timeout, self._longest)
        return Suspended(paused.pause, kept, wait)

    async def of(self, work: Work, grant: Grant) -> Resume | None:
        """How a run goes on that waited; None: it begins.

        Where nobody has decided in time, the flow's fallback has. Raises EventFault where there is none, or where what
        was kept of the run is lost; CheckpointLocked; Aborted.
        """
        if not grant.pause:
            return None
        kept = await self._checkpoint(work)
        if kept is None:
            raise _fault("checkpoint_lost", "the run waited for a decision, and what was kept of it is gone from Redis")
        about, _, state = self._seal.open(kept, run=_run(work)).partition(b"\n")
        try:
            pause = Pause.model_validate(json.loads(about)["pause"])
            decision = Decision.model_validate_json(grant.decision) if grant.decision else None
        except (ValueError, KeyError, ValidationError) as error:
            raise _fault(
                "checkpoint_unreadable", f"what was kept of a run that waited cannot be read: {error}"
            ) from error
        if decision is None:
            if pause.fallback is None:
                raise _fault("pause_expired", f"nobody decided in time, and the flow has no fallback: {pause.prompt}")
            decision = Decision(action_id=pause.fallback)
        return Resume(state, grant.pause, decision)

    async def _checkpoint(self, work: Work) -> bytes | None:
        """What the gate keeps, from Redis until it has answered."""
        tries = 0
        while work.flight.abort is None:
            try:
                return await self._broker.gate.checkpoint(work.claim)
            except HeadraceError as error:
                tries += 1
                if not await self._settler.again(work, "checkpoint", error, tries):
                    raise Aborted(Abort.LOST) from error
        raise Aborted(work.flight.abort)


def _run(work: Work) -> str:
    return work.claim.keys.run(work.claim.event_id)


def _fault(code: str, message: str) -> EventFault:
    return EventFault(ErrorInfo(code=code, message=message))
