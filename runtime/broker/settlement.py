"""Settling: the one write that records an outcome; where its targets lie in other slots, the steps of ``staging``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from pydantic import ValidationError

from runtime.broker.connection import Connection
from runtime.broker.delivery import Delivery
from runtime.broker.gate import Claim
from runtime.broker.letters import letter_fields
from runtime.broker.outcome import (
    Completed,
    DeadLettered,
    Outcome,
    Publication,
    Released,
    Retried,
    RunMeta,
    Settled,
)
from runtime.broker.records import to_json
from runtime.broker.scripts import Argument, Call, call
from runtime.broker.staging import Prepared, Staging, Target, claim_keys, claim_words, settled
from runtime.errors import PublishRefused
from runtime.settings import RetentionSettings
from shared_models.chat import ChatCommit
from shared_models.dead_letter import DeadLetterSummary, ErrorInfo
from shared_models.result import RunResult


class Settlement:
    """Records outcomes, each in one atomic call where that is possible."""

    def __init__(self, connection: Connection, retention: RetentionSettings) -> None:
        self._connection = connection
        self._retention = retention
        self._staging = Staging(connection, retention)

    async def settle(
        self,
        claim: Claim,
        outcome: Outcome,
        *,
        delivery: Delivery,
        attempts: int,
        meta: RunMeta,
        dead_letter_stream: str,
    ) -> Settled:
        """Record the outcome. Repeat it unchanged until it is answered.

        Raises PublishRefused (nothing was written: a target is not a stream) and BrokerUnavailable.
        """
        match outcome:
            case Completed():
                return await self._record(claim, self._completed(claim, outcome, meta))
            case DeadLettered():
                words = letter_fields(claim, outcome.error, delivery=delivery, attempts=attempts, meta=meta)
                letter = Target(dead_letter_stream, "", tuple(words))
                return await self._record(claim, self._dead_lettered(claim, outcome, letter, attempts))
            case Retried():
                asked = self._retry(claim, outcome)
            case Released():
                asked = self._release(claim, outcome)
        return settled(await self._connection.run(asked), asked)

    async def finish(self, claim: Claim) -> Settled:
        """Publish and record the outcome that the gate of the claim keeps. Repeat it until it is answered.

        Raises OutcomeRefused if a target is not a stream any more, and BrokerUnavailable.
        """
        held = await self._staging.held(claim)
        if held is None:
            return Settled.ALREADY
        try:
            return await self._staging.finish(claim, held)
        except PublishRefused as error:
            raise OutcomeRefused(error, _result(held.outcome)) from error

    async def _record(self, claim: Claim, outcome: Prepared) -> Settled:
        if self._staging.needed(claim, outcome):
            return await self._staging.settle(claim, outcome)
        asked = outcome.call(claim, targets=outcome.targets)
        return settled(await self._connection.run(asked), asked)

    def _completed(self, claim: Claim, outcome: Completed, meta: RunMeta) -> Prepared:
        retention = self._retention
        published = [{"stream": p.stream, "event_id": p.event_id} for p in outcome.publications]
        sessions = tuple(claim.keys.chat(meta.tenant_id, commit.session) for commit in outcome.chat)
        words = (
            *(claim.ttl_ms, claim.kept_ms(retention)),
            *(to_json(outcome.result), to_json(published)),
            *(retention.chat_messages, int(retention.chat * 1000), len(sessions)),
            *chain.from_iterable(_chat(commit) for commit in outcome.chat),
        )
        return Prepared("complete", words, sessions, targets=_targets(outcome.publications))

    def _dead_lettered(self, claim: Claim, outcome: DeadLettered, letter: Target, attempts: int) -> Prepared:
        result = to_json(outcome.result) if outcome.result else ""
        words = (
            *(claim.ttl_ms, claim.kept_ms(self._retention)),
            *(outcome.error.message, to_json(_summary(outcome.error, attempts)), result),
        )
        return Prepared("dead_letter", words, letter=letter, targets=_targets(outcome.publications))

    def _retry(self, claim: Claim, outcome: Retried) -> Call:
        kept = claim.kept_ms(self._retention)
        args = (claim.ttl_ms, kept, _delay(outcome.delay), outcome.error.message)
        return call("retry", claim_keys(claim), *claim_words(claim), *args)

    def _release(self, claim: Claim, outcome: Released) -> Call:
        why = outcome.error.message if outcome.error else ""
        args = (claim.kept_ms(self._retention), _delay(outcome.delay), why)
        return call("release", claim_keys(claim), *claim_words(claim), *args)


class OutcomeRefused(PublishRefused):
    """A target of an outcome that was kept is not a stream; ``result`` is the run's, for the dead letter."""

    def __init__(self, refused: PublishRefused, result: RunResult | None) -> None:
        super().__init__(refused.message, target=refused.target)
        self.result = result


def _result(outcome: Prepared) -> RunResult | None:
    """The result, which stands third of the words of a run that has succeeded."""
    if outcome.script != "complete":
        return None
    try:
        return RunResult.model_validate_json(outcome.words[2])  # type: ignore[arg-type]
    except ValidationError:
        return None


def _delay(seconds: float) -> int:
    return max(0, int(seconds * 1000))


def _chat(commit: ChatCommit) -> Iterator[Argument]:
    yield len(commit.ops)
    for op in commit.ops:
        # The id is the line's first part: it may not end it.
        yield from (op.op, str(op.message.get("id", "")).replace("\n", " "), to_json(dict(op.message)))


def _targets(publications: Sequence[Publication]) -> tuple[Target, ...]:
    return tuple(
        Target(p.stream, "" if p.keep is None else str(p.keep), tuple(chain.from_iterable(p.fields)))
        for p in publications
    )


def _summary(error: ErrorInfo, attempts: int) -> DeadLetterSummary:
    return DeadLetterSummary(code=error.code, reason=error.message, component_id=error.component_id, attempts=attempts)
