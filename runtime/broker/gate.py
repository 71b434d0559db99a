"""The gate: whether an entry may run now, and under which token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runtime.broker.connection import Connection
from runtime.broker.delivery import Grant, Verdict
from runtime.broker.keys import RouteKeys
from runtime.broker.outcome import RunMeta
from runtime.broker.records import meta_fields
from runtime.broker.scripts import Argument, Refusal, call, refuse
from runtime.settings import RetentionSettings

MAX_WAIT = 5.0
"""Seconds that a duplicate of a running event waits at most before it looks again."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One worker's claim on one entry.

    ``token`` is unique to this attempt (the worker's name, a dot, a counter). ``key`` is the idempotency key, ``ttl``
    how many seconds an ended key stays taken.
    """

    keys: RouteKeys
    worker: str
    entry_id: str
    token: str
    key: str
    event_id: str
    ttl: float = 86400.0

    @property
    def ttl_ms(self) -> int:
        """``ttl`` in ms."""
        return max(1, int(self.ttl * 1000))

    def kept_ms(self, retention: RetentionSettings) -> int:
        """For how many ms the run's record is kept: it must outlive the key, whose duplicates it answers."""
        return max(self.ttl_ms, int(retention.runs * 1000))


class Gate:
    """Decides who runs."""

    def __init__(self, connection: Connection, retention: RetentionSettings) -> None:
        self._connection = connection
        self._retention = retention

    async def begin(
        self,
        claim: Claim,
        *,
        max_attempts: int,
        wait: float,
        meta: RunMeta,
        longest: float = MAX_WAIT,
        takeover: str = "",
        probe: bool = False,
        alone: bool = True,
    ) -> Grant:
        """Ask to run the entry.

        Repeat it unchanged if the answer is lost. ``wait``: seconds until a waiting duplicate asks again,
        each time twice as long, ``longest`` at most.
        ``takeover``: a token of this worker's own that it does not run any more. ``probe``: run although the route is
        blocked. ``alone``: nothing else runs in this process, so that an entry under suspicion may. Raises GroupMissing
        (the entry will be delivered anew), BrokerUnavailable.
        """
        keys = claim.keys
        names = [keys.stream, keys.gate(claim.key), keys.due, keys.leases, keys.obits]
        names += [keys.run(claim.event_id), keys.blocked, keys.feed(claim.event_id), keys.runs]
        names.append(keys.watched(claim.event_id))
        who = (keys.group, claim.worker, claim.entry_id, claim.token, claim.event_id)
        rules: tuple[Argument, ...] = (max_attempts, takeover, int(wait * 1000), int(longest * 1000))
        rules += (claim.ttl_ms, claim.kept_ms(self._retention), int(probe), int(alone))
        asked = call("begin", names, *who, *rules, *meta_fields(meta, event_id=claim.event_id))
        return _grant(claim, await self._connection.run(asked))

    async def checkpoint(self, claim: Claim) -> bytes | None:
        """What the gate keeps of a run that waited for a person; None if it keeps nothing."""
        kept: bytes | None = await self._connection.command("HGET", claim.keys.gate(claim.key), "checkpoint")
        return kept


def _grant(claim: Claim, reply: list[Any]) -> Grant:
    code = reply[0]
    if code < 0 and code != Refusal.NO_LEASE:
        raise refuse(code)
    rest: list[Any] = [part.decode() if isinstance(part, bytes) else part for part in reply[1:]]
    verdict, token = Verdict(code), claim.token
    match verdict:
        case Verdict.RUN | Verdict.OVER:
            return Grant(
                verdict,
                token,
                attempts=rest[0],
                event_id=claim.event_id,
                entry_id=claim.entry_id,
                pause=rest[1],
                decision=rest[2],
                followed=rest[3] == 1,
            )
        case Verdict.STAGED:
            return Grant(verdict, token, attempts=rest[0], event_id=rest[1], entry_id=rest[2])
        case Verdict.ENDED:
            return Grant(verdict, token, state=rest[0], event_id=rest[1], entry_id=claim.entry_id)
        case Verdict.WAIT:
            return Grant(
                verdict, rest[1], holder=rest[0], event_id=claim.event_id, entry_id=claim.entry_id, waits=rest[2]
            )
        case _:
            return Grant(verdict, token, event_id=claim.event_id, entry_id=claim.entry_id)
