"""Decisions for runs that wait for a person."""

from __future__ import annotations

from enum import IntEnum

from runtime.broker.connection import Connection
from runtime.broker.keys import RouteKeys
from runtime.broker.records import show, to_json
from runtime.broker.runs import Runs
from runtime.broker.scripts import call
from runtime.errors import AlreadyDecided, DecisionError, DecisionInvalid, NotWaiting, PauseOver, RunNotFound
from shared_models.result import Decision, Pause, RunRecord


class _Answer(IntEnum):
    UNKNOWN = 0
    TAKEN = 1
    REPEATED = 2
    DECIDED = 3
    OTHER = 4
    OVER = 5


class Pauses:
    """Takes decisions."""

    def __init__(self, connection: Connection, runs: Runs) -> None:
        self._connection = connection
        self._runs = runs

    async def resume(
        self, keys: RouteKeys, event_id: str, decision: Decision, *, request_id: str | None = None
    ) -> RunRecord:
        """Let a run go on with a decision; its record afterwards.

        ``request_id``: the question that is answered; with it, the call is safe to repeat. None: the one that the run
        asks now, which may be another one by the time of a repeated call.
        Raises RunNotFound, NotWaiting (it waits for nothing, or for another request), AlreadyDecided, PauseOver,
        DecisionInvalid (not among the allowed actions), and BrokerUnavailable.
        """
        record = await self._runs.get(keys, event_id)
        if record is None:
            raise RunNotFound(f"no run of event {event_id!r} is known")
        gate = keys.gate(record.idempotency_key or event_id)
        checked = record.pause is not None and request_id in (None, record.pause.request_id)
        if record.pause is not None and checked:
            _check(record.pause, decision)
        if request_id is None:
            # A repeated call comes when the record has forgotten the question; the gate has not.
            kept = None if record.pause else await self._connection.command("HGET", gate, "pause")
            request_id = record.pause.request_id if record.pause else show(kept) if kept else ""
        told = {"request_id": request_id, "action_id": decision.action_id}
        names = [gate, keys.due, keys.run(event_id), keys.feed(event_id), keys.runs]
        asked = call("resume", names, event_id, request_id, to_json(decision), to_json(told), int(checked))
        (code,) = await self._connection.run(asked)
        answer = _Answer(code)
        if answer not in (_Answer.TAKEN, _Answer.REPEATED):
            raise _refusal(answer, record, request_id)
        return await self._runs.get(keys, event_id) or record


def _check(pause: Pause, decision: Decision) -> None:
    """The engine takes an action that it does not know for an approval, or for no branch at all."""
    if decision.action_id not in pause.allowed:
        raise DecisionInvalid(
            f"{decision.action_id!r} is none of the decisions that the run asks for: {', '.join(pause.allowed)}"
        )


def _refusal(answer: _Answer, record: RunRecord, request_id: str) -> DecisionError:
    event = record.event_id
    match answer:
        case _Answer.UNKNOWN:
            return RunNotFound(f"no run of event {event!r} is known")
        case _Answer.DECIDED:
            return AlreadyDecided(f"another decision was taken for the run of event {event!r} before")
        case _Answer.OVER if request_id:
            return PauseOver(f"the run of event {event!r} waits no more: the time was up, or it has ended")
        case _:
            pause = record.pause
            waits = f"it waits for {pause.request_id!r}" if pause else f"it is {record.status.value}"
            return NotWaiting(f"the run of event {event!r} does not wait for this decision; {waits}")
