"""Settling: the one write that records an outcome; where its targets lie in other slots, the steps of ``staging``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain

from runtime.broker.connection import Connection
from runtime.broker.delivery import Delivery
from runtime.broker.gate import Claim
from runtime.broker.letters import letter_fields
from runtime.broker.limits import check_size
from runtime.broker.outcome import (
    Completed,
    DeadLettered,
    Outcome,
    Publication,
    Released,
    Retried,
    RunMeta,
    Settled,
    Suspended,
)
from runtime.broker.records import to_json
from runtime.broker.scripts import Argument, Call, call
from runtime.broker.staging import Prepared, Staging, Target, as_json, claim_keys, claim_words, settled
from runtime.errors import BrokerError
from runtime.settings import RetentionSettings
from shared_models.chat import ChatCommit
from shared_models.dead_letter import DeadLetterSummary, ErrorInfo
from shared_models.result import RunResult

_RESULT_OF = {"complete": 2, "dead_letter": 4}
"""Where the result stands among the words of an outcome, by its script."""


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

        Raises PublishRefused (a target is not a stream), OutcomeTooLarge and other BrokerErrors where it was refused
        and nothing was written, and BrokerUnavailable.
        """
        match outcome:
            case Retried():
                asked = self._retry(claim, outcome)
            case Released():
                asked = self._release(claim, outcome)
            case Suspended():
                asked = self._suspend(claim, outcome)
                await check_size(self._connection, asked)
            case _:
                prepared = self._prepare(
                    claim, outcome, delivery=delivery, attempts=attempts, meta=meta, stream=dead_letter_stream
                )
                return await self._record(claim, prepared)
        return settled(await self._connection.run(asked), asked)

    async def finish(self, claim: Claim) -> Settled:
        """Publish and record the outcome that the gate of the claim keeps. Repeat it until it is answered.

        Raises OutcomeRefused where it cannot be written, and BrokerUnavailable.
        """
        held = await self._staging.held(claim)
        if held is None:
            return Settled.ALREADY
        try:
            return await self._staging.finish(claim, held)
        except BrokerError as error:
            if error.retryable:
                raise
            raise OutcomeRefused(error, _result(held.outcome)) from error

    async def hold(
        self,
        claim: Claim,
        outcome: Completed | DeadLettered | None,
        *,
        delivery: Delivery,
        attempts: int,
        meta: RunMeta,
        dead_letter_stream: str,
        why: str,
        delay: float,
    ) -> Settled:
        """Keep an outcome that is refused where it belongs; ``finish`` is to be tried again ``delay`` seconds from now.

        None: the gate keeps it already. Repeat it until it is answered. Raises OutcomeTooLarge and BrokerUnavailable.
        """
        kept = result = ""
        if outcome is not None:
            prepared = self._prepare(
                claim, outcome, delivery=delivery, attempts=attempts, meta=meta, stream=dead_letter_stream
            )
            kept, result = as_json(prepared), to_json(outcome.result) if outcome.result else ""
        args = (claim.kept_ms(self._retention), _delay(delay), why, kept, result)
        asked = call("hold", claim_keys(claim), *claim_words(claim), *args)
        await check_size(self._connection, asked)
        return settled(await self._connection.run(asked), asked)

    async def _record(self, claim: Claim, outcome: Prepared) -> Settled:
        asked = outcome.call(claim, targets=outcome.targets)
        await check_size(self._connection, asked)
        if self._staging.needed(claim, outcome):
            return await self._staging.settle(claim, outcome)
        return settled(await self._connection.run(asked), asked)

    def _prepare(
        self,
        claim: Claim,
        outcome: Completed | DeadLettered,
        *,
        delivery: Delivery,
        attempts: int,
        meta: RunMeta,
        stream: str,
    ) -> Prepared:
        if isinstance(outcome, Completed):
            return self._completed(claim, outcome, meta)
        words = letter_fields(claim, outcome.error, delivery=delivery, attempts=attempts, meta=meta)
        return self._dead_lettered(claim, outcome, Target(stream, tuple(words)), attempts)

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
        return Prepared("complete", words, sessions, targets=_targets(outcome.publications, self._retention))

    def _dead_lettered(self, claim: Claim, outcome: DeadLettered, letter: Target, attempts: int) -> Prepared:
        result = to_json(outcome.result) if outcome.result else ""
        words = (
            *(claim.ttl_ms, claim.kept_ms(self._retention)),
            *(outcome.error.message, to_json(_summary(outcome.error, attempts)), result),
        )
        return Prepared("dead_letter", words, letter=letter, targets=_targets(outcome.publications, self._retention))

    def _retry(self, claim: Claim, outcome: Retried) -> Call:
        kept = claim.kept_ms(self._retention)
        args = (claim.ttl_ms, kept, _delay(outcome.delay), outcome.error.message)
        return call("retry", claim_keys(claim), *claim_words(claim), *args)

    def _release(self, claim: Claim, outcome: Released) -> Call:
        why = outcome.error.message if outcome.error else ""
        args = (claim.kept_ms(self._retention), _delay(outcome.delay), why)
        return call("release", claim_keys(claim), *claim_words(claim), *args)

    def _suspend(self, claim: Claim, outcome: Suspended) -> Call:
        kept, pause = claim.kept_ms(self._retention), outcome.pause
        args = (claim.ttl_ms, kept, _delay(outcome.wait), pause.request_id, to_json(pause), outcome.checkpoint)
        return call("suspend", claim_keys(claim), *claim_words(claim), *args)


class OutcomeRefused(BrokerError):
    """An outcome that was kept cannot be written: ``refused`` says why; ``result`` goes to the dead letter."""

    def __init__(self, refused: BrokerError, result: RunResult | None) -> None:
        super().__init__(refused.message)
        self.refused = refused
        self.result = result


def _result(outcome: Prepared) -> RunResult | None:
    text = outcome.words[_RESULT_OF[outcome.script]]
    try:
        # Not pydantic's own parser: it refuses half characters, which a result may hold.
        return RunResult.model_validate(json.loads(text)) if text and isinstance(text, str | bytes) else None
    except ValueError:
        return None


def _delay(seconds: float) -> int:
    return max(0, int(seconds * 1000))


def _chat(commit: ChatCommit) -> Iterator[Argument]:
    yield len(commit.ops)
    for op in commit.ops:
        # The id is the line's first part: it may not end it.
        yield from (op.op, str(op.message.get("id", "")).replace("\n", " "), to_json(dict(op.message)))


def _targets(publications: Sequence[Publication], retention: RetentionSettings) -> tuple[Target, ...]:
    return tuple(
        Target(
            p.stream,
            tuple(chain.from_iterable(p.fields)),
            keep="" if p.keep is None else str(p.keep),
            life=str(int(retention.results * 1000)) if p.reply else "",
        )
        for p in publications
    )


def _summary(error: ErrorInfo, attempts: int) -> DeadLetterSummary:
    return DeadLetterSummary(code=error.code, reason=error.message, component_id=error.component_id, attempts=attempts)
