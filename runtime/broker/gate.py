"""The gate: whether an entry may run now, and under which token."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.broker.connection import Connection
from runtime.broker.delivery import Grant
from runtime.broker.keys import RouteKeys
from runtime.broker.outcome import RunMeta
from runtime.settings import RetentionSettings


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
        takeover: str = "",
        probe: bool = False,
    ) -> Grant:
        """Ask to run the entry.

        Repeat it unchanged if the answer is lost. ``wait``: seconds until a waiting duplicate asks again.
        ``takeover``: a token of this worker's own that it does not run any more. ``probe``: run although the route is
        blocked.
        """
        raise NotImplementedError
