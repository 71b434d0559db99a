"""Settling: the one write that records an outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

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
from runtime.broker.scripts import Argument, Call, Refusal, call
from runtime.errors import BrokerError, PublishRefused
from runtime.settings import RetentionSettings
from shared_models.chat import ChatCommit
from shared_models.dead_letter import DeadLetterSummary, ErrorInfo


class Settlement:
    """Records outcomes, each in one atomic call."""

    def __init__(self, connection: Connection, retention: RetentionSettings) -> None:
        self._connection = connection
        self._retention = retention

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
                asked = self._complete(claim, outcome, meta)
            case Retried():
                asked = self._retry(claim, outcome)
            case Released():
                asked = self._release(claim, outcome)
            case DeadLettered():
                letter = letter_fields(claim, outcome.error, delivery=delivery, attempts=attempts, meta=meta)
                asked = self._dead_letter(claim, outcome, letter, attempts, dead_letter_stream)
        return _settled(await self._connection.run(asked), asked)

    def _complete(self, claim: Claim, outcome: Completed, meta: RunMeta) -> Call:
        retention = self._retention
        published = [{"stream": p.stream, "event_id": p.event_id} for p in outcome.publications]
        sessions = [claim.keys.chat(meta.tenant_id, commit.session) for commit in outcome.chat]
        return call(
            "complete",
            [*_keys(claim), *sessions, *(p.stream for p in outcome.publications)],
            *_who(claim),
            *(claim.ttl_ms, claim.kept_ms(retention)),
            *(to_json(outcome.result), to_json(published)),
            *(retention.chat_messages, int(retention.chat * 1000), len(sessions)),
            *chain.from_iterable(_chat(commit) for commit in outcome.chat),
            *chain.from_iterable(_target(publication) for publication in outcome.publications),
        )

    def _retry(self, claim: Claim, outcome: Retried) -> Call:
        kept = claim.kept_ms(self._retention)
        args = (claim.ttl_ms, kept, _delay(outcome.delay), outcome.error.message)
        return call("retry", _keys(claim), *_who(claim), *args)

    def _release(self, claim: Claim, outcome: Released) -> Call:
        why = outcome.error.message if outcome.error else ""
        args = (claim.kept_ms(self._retention), _delay(outcome.delay), why)
        return call("release", _keys(claim), *_who(claim), *args)

    def _dead_letter(
        self, claim: Claim, outcome: DeadLettered, letter: Sequence[Argument], attempts: int, stream: str
    ) -> Call:
        result = to_json(outcome.result) if outcome.result else ""
        return call(
            "dead_letter",
            [*_keys(claim), stream, *(p.stream for p in outcome.publications)],
            *_who(claim),
            *(claim.ttl_ms, claim.kept_ms(self._retention)),
            *(outcome.error.message, to_json(_summary(outcome.error, attempts)), result),
            *(str(len(letter)), *letter),
            *chain.from_iterable(_target(publication) for publication in outcome.publications),
        )


def _keys(claim: Claim) -> list[str]:
    keys = claim.keys
    return [keys.stream, keys.gate(claim.key), keys.due, keys.run(claim.event_id), keys.feed(claim.event_id)]


def _who(claim: Claim) -> tuple[str, ...]:
    return (claim.keys.group, claim.worker, claim.entry_id, claim.token, claim.event_id)


def _delay(seconds: float) -> int:
    return max(0, int(seconds * 1000))


def _chat(commit: ChatCommit) -> Iterator[Argument]:
    yield len(commit.ops)
    for op in commit.ops:
        # The id is the line's first part: it may not end it.
        yield from (op.op, str(op.message.get("id", "")).replace("\n", " "), to_json(dict(op.message)))


def _target(publication: Publication) -> Iterator[Argument]:
    yield "" if publication.keep is None else publication.keep
    yield 2 * len(publication.fields)
    yield from chain.from_iterable(publication.fields)


def _summary(error: ErrorInfo, attempts: int) -> DeadLetterSummary:
    return DeadLetterSummary(code=error.code, reason=error.message, component_id=error.component_id, attempts=attempts)


def _settled(reply: list[Any], asked: Call) -> Settled:
    code = reply[0]
    if code == Refusal.WRONG_TYPE:
        target = asked.keys[reply[1] - 1]
        raise PublishRefused(f"{target} is not a stream; nothing was published or recorded", target=target)
    try:
        return Settled(code)
    except ValueError as error:
        raise BrokerError(f"the script {asked.script.name} answered {code}") from error
