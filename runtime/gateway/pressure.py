"""Refusing at the door what would be lost, or would only wait, inside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from runtime.broker.door import Admitted, Answer, Door
from runtime.broker.fleet import RouteEntry
from runtime.gateway.problems import Problem
from runtime.gateway.routes_known import keys_of, spec_of
from shared_models.route import LimitsSpec

FRESH = 2.0
"""Seconds that the server's room is remembered."""

BUSY = 5
"""Seconds after which a backlog, or a full server, is worth another try."""

TIDIED = 0.5
"""Seconds between two looks at a tenant's open events."""

REMEMBERED = 10_000
"""Tenants whose last look is remembered."""

_REASONS = {
    Admitted.RATE: ("rate_limited", "the route takes no more events a second"),
    Admitted.TENANT_RATE: ("tenant_rate_limited", "the route takes no more events a second of this tenant"),
    Admitted.BACKLOG: ("backlog_full", "the route's stream is as long as it may be"),
    Admitted.TENANT_BACKLOG: ("tenant_backlog_full", "the route holds as many events of this tenant as it may"),
}


class Pressure:
    """Admits events, or says when to come again. ``memory``: the share of its memory that Redis may use."""

    def __init__(self, door: Door, *, memory: float) -> None:
        self._door = door
        self._memory = memory
        self._share = 0.0
        self._read = float("-inf")
        self._turn = asyncio.Lock()
        self._tidied: dict[tuple[str, str, str | None], float] = {}

    async def admit(self, route: RouteEntry, tenant: str | None, event_ids: Sequence[str]) -> None:
        """Let the events in. Raises Problem 429 or 503, both with Retry-After, and BrokerError."""
        if await self._fullness() > self._memory:
            detail = "Redis has hardly any memory left; what is taken now might be refused inside"
            raise Problem(503, "redis_memory", detail, retry_after=BUSY)
        limits = spec_of(route).limits
        if limits == LimitsSpec() or not event_ids:
            return
        answer = await self._door.admit(keys_of(route), tenant, event_ids, limits)
        if answer.admitted is Admitted.TENANT_BACKLOG and await self._tidy(route, tenant):
            answer = await self._door.admit(keys_of(route), tenant, event_ids, limits)
        if answer.admitted is not Admitted.YES:
            raise _refusal(answer)

    async def _tidy(self, route: RouteEntry, tenant: str | None) -> int:
        """Look which of the tenant's events have ended; rarely, since it is refused requests that ask."""
        key, now = (route.stream, route.group, tenant), time.monotonic()
        if now - self._tidied.get(key, float("-inf")) < TIDIED:
            return 0
        if len(self._tidied) >= REMEMBERED:
            self._tidied.clear()
        self._tidied[key] = now
        return await self._door.tidy(keys_of(route), tenant)

    async def _fullness(self) -> float:
        if time.monotonic() - self._read > FRESH:
            async with self._turn:
                if time.monotonic() - self._read > FRESH:
                    room = await self._door.room()
                    self._share = room.share if room else 0.0
                    self._read = time.monotonic()
        return self._share


def _refusal(answer: Answer) -> Problem:
    code, detail = _REASONS[answer.admitted]
    if answer.wait:
        return Problem(429, code, f"{detail}; come again in {answer.wait:.3g} s", retry_after=answer.wait)
    return Problem(429, code, f"{detail}: {answer.held}", retry_after=BUSY)
