"""Outcomes whose targets lie in other slots of a cluster: kept in the gate, published one by one, then recorded.

A crash in between leaves a gate that is `staged`: its next holder publishes what is left and records it, and the flow
does not run again. Each publication is known in its own slot by where it comes from and the gate's generation, so
that it is published once however often it is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from runtime.broker.connection import Connection
from runtime.broker.gate import Claim
from runtime.broker.keys import published
from runtime.broker.limits import check_size
from runtime.broker.outcome import Settled
from runtime.broker.publisher import DEDUP
from runtime.broker.scripts import Argument, Call, Refusal, call
from runtime.errors import BrokerError, PublishRefused
from runtime.settings import RetentionSettings

STORABLE = "surrogateescape"
"""How bytes that are not UTF-8 become JSON, and bytes again."""


@dataclass(frozen=True, slots=True)
class Target:
    """A stream and what to add to it: names and values in turn.

    ``keep`` is as in Publication, empty: all; ``life`` is in ms, empty: for ever.
    """

    stream: str
    words: tuple[Argument, ...]
    keep: str = ""
    life: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An outcome as its script takes it, but for who settles it and what is published.

    ``words`` come after the claim's; ``sessions`` are keys of chat histories; ``letter`` is the dead letter, if it is
    one.
    """

    script: str
    words: tuple[Argument, ...]
    sessions: tuple[str, ...] = ()
    letter: Target | None = None
    targets: tuple[Target, ...] = ()

    @property
    def streams(self) -> list[str]:
        """Every stream that it writes to."""
        return [target.stream for target in ((self.letter,) if self.letter else ()) + self.targets]

    def call(self, claim: Claim, *, targets: Sequence[Target], letter_id: str = "", elsewhere: bool = False) -> Call:
        """The script that records it and publishes these. ``elsewhere``: the letter lies in another slot."""
        near = [self.letter] if self.letter and not elsewhere else []
        names = [*claim_keys(claim), *self.sessions, *(target.stream for target in (*near, *targets))]
        letter: tuple[Argument, ...] = ()
        if self.script == "dead_letter":
            words = near[0].words if near else ()
            letter = (letter_id, len(words), *words)
        return call(
            self.script,
            names,
            *claim_words(claim),
            *self.words,
            *letter,
            *chain.from_iterable((t.keep, t.life, len(t.words), *t.words) for t in targets),
        )


@dataclass(frozen=True, slots=True)
class Held:
    """An outcome that a gate keeps, and what makes its publications' ids and times."""

    outcome: Prepared
    generation: str
    first: str
    at: str


def claim_keys(claim: Claim) -> list[str]:
    """The first keys of every script that settles."""
    keys = claim.keys
    return [keys.stream, keys.gate(claim.key), keys.due, keys.run(claim.event_id), keys.feed(claim.event_id)]


def claim_words(claim: Claim) -> tuple[str, ...]:
    """The first arguments of every script that settles."""
    return (claim.keys.group, claim.worker, claim.entry_id, claim.token, claim.event_id)


class Staging:
    """Settles in steps."""

    def __init__(self, connection: Connection, retention: RetentionSettings) -> None:
        self._connection = connection
        self._retention = retention

    def needed(self, claim: Claim, outcome: Prepared) -> bool:
        """Whether one script cannot do it."""
        return not all(self._near(claim, stream) for stream in outcome.streams)

    async def settle(self, claim: Claim, outcome: Prepared) -> Settled:
        """Keep the outcome, publish it, record it. Repeat it unchanged until it is answered.

        Raises PublishRefused, most often before anything was written, and BrokerUnavailable.
        """
        await self._check(claim, outcome)
        names, words = [claim.keys.stream, claim.keys.gate(claim.key)], claim_words(claim)
        asked = call("stage", names, *words, as_json(outcome), int(outcome.letter is not None))
        await check_size(self._connection, asked)
        code, *rest = await self._connection.run(asked)
        if code == Settled.CANCELLED.value:
            # Its script finds the same flag, and drops the entry without a letter.
            return settled(await self._connection.run(outcome.call(claim, targets=(), elsewhere=True)), asked)
        if code != Settled.DONE.value:
            return settled([code], asked)
        generation, first, at = (part.decode() if isinstance(part, bytes) else str(part) for part in rest)
        return await self.finish(claim, Held(outcome, generation, first, at))

    async def held(self, claim: Claim) -> Held | None:
        """The outcome that the gate keeps; None if it keeps none."""
        gate = claim.keys.gate(claim.key)
        flat = await self._connection.command("HMGET", gate, "outcome", "gen", "first", "staged_at")
        if not flat[0]:
            return None
        try:
            outcome = _from_json(flat[0])
        except (ValueError, KeyError, TypeError) as error:
            raise BrokerError(f"what is staged at {gate} cannot be read: {error}") from error
        return Held(outcome, *((part or b"").decode() for part in flat[1:]))

    async def finish(self, claim: Claim, held: Held) -> Settled:
        """Publish what a gate keeps and record it, as the gate's holder. Raises as ``settle``."""
        outcome, letter_id = held.outcome, ""
        letter_apart = outcome.letter is not None and not self._near(claim, outcome.letter.stream)
        if outcome.letter is not None and letter_apart:
            times = ("dl_first_at", held.first, "dl_died_at", held.at)
            letter = Target(outcome.letter.stream, (*times, *outcome.letter.words))
            letter_id = await self._publish(claim, letter, held, "letter")
        near = []
        for number, target in enumerate(outcome.targets):
            if self._near(claim, target.stream):
                near.append(target)
            else:
                await self._publish(claim, target, held, str(number))
        asked = outcome.call(claim, targets=near, letter_id=letter_id, elsewhere=letter_apart)
        return settled(await self._connection.run(asked), asked)

    async def _publish(self, claim: Claim, target: Target, held: Held, which: str) -> str:
        keys = claim.keys
        mark = f"{keys.stream} {keys.group} {claim.event_id} {held.generation} {held.outcome.script} {which}"
        ttl = int(max(claim.ttl, DEDUP) * 1000)
        words = (ttl, mark, int(self._retention.runs * 1000), target.keep, target.life, 0, *target.words)
        reply = await self._connection.run(call("publish", [target.stream, published(target.stream, mark)], *words))
        if reply[0] == Refusal.WRONG_TYPE:
            raise refused(target.stream)
        entry_id: bytes = reply[1]
        return entry_id.decode()

    async def _check(self, claim: Claim, outcome: Prepared) -> None:
        """Look at the targets before anything is written, as the scripts do with theirs."""
        apart = [stream for stream in outcome.streams if not self._near(claim, stream)]
        kinds = await self._connection.pipeline([("TYPE", stream) for stream in apart])
        for stream, kind in zip(apart, kinds, strict=True):
            if isinstance(kind, BrokerError):
                raise kind
            if kind not in (b"none", b"stream"):
                raise refused(stream)

    def _near(self, claim: Claim, stream: str) -> bool:
        return self._connection.together(claim.keys.stream, stream)


def refused(stream: str) -> PublishRefused:
    """The error for a target that is no stream."""
    return PublishRefused(f"{stream} is not a stream; nothing was published or recorded", target=stream)


def settled(reply: list[Any], asked: Call) -> Settled:
    """What a script that settles has answered. Raises PublishRefused."""
    code = reply[0]
    if code == Refusal.WRONG_TYPE:
        raise refused(asked.keys[reply[1] - 1])
    try:
        return Settled(code)
    except ValueError as error:
        raise BrokerError(f"the script {asked.script.name} answered {code}") from error


def as_json(outcome: Prepared) -> str:
    """The outcome as a gate keeps it."""
    return json.dumps(_storable(asdict(outcome)), separators=(",", ":"))


def _storable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _storable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(part) for part in value]
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    return value.decode("utf-8", STORABLE) if isinstance(value, bytes) else value


def _from_json(text: bytes) -> Prepared:
    stored = json.loads(text)
    return Prepared(
        script=stored["script"],
        words=tuple(_words(stored["words"])),
        sessions=tuple(stored["sessions"]),
        letter=_target(stored["letter"]) if stored["letter"] else None,
        targets=tuple(_target(target) for target in stored["targets"]),
    )


def _target(stored: dict[str, Any]) -> Target:
    return Target(stored["stream"], tuple(_words(stored["words"])), stored["keep"], stored.get("life", ""))


def _words(stored: Sequence[Any]) -> Iterator[Argument]:
    return (word.encode("utf-8", STORABLE) if isinstance(word, str) else word for word in stored)
