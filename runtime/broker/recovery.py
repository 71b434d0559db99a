"""Recovery: entries of workers that are gone, and what operators or evictions broke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.broker.connection import Connection
from runtime.broker.delivery import Delivery
from runtime.broker.keys import RouteKeys

MAX_DELIVERIES = 9
"""How often an entry may be lost with its worker before it counts as poison (twice three attempts, and three)."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did: entries moved, consumers removed, ids that killed their workers too often.

    ``grace``: nothing was done, for Redis or this sweeper was away and the others must have time to renew.
    Take ``poison`` with ``Recovery.adopt`` and dead-letter it undecoded.
    """

    moved: int = 0
    removed: int = 0
    poison: tuple[str, ...] = ()
    grace: bool = False


class Recovery:
    """Hands on what dead workers held."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def sweep(
        self,
        keys: RouteKeys,
        *,
        lease: float,
        gap: float,
        idle: float,
        page: int = 100,
        max_deliveries: int = MAX_DELIVERIES,
    ) -> Swept:
        """Park a page of entries whose worker's lease has ended; times in seconds. Call again while moved == page.

        ``gap``: a longer pause since the last sweep gives everybody one ``lease`` of grace. ``idle``: how long a
        consumer without any lease may do nothing before it counts as gone.
        """
        raise NotImplementedError

    async def declare_dead(self, keys: RouteKeys, *, worker: str, blame: Sequence[str] | None) -> Swept:
        """Hand on all entries of a worker that is known to have ended.

        ``blame``: the tokens whose attempts stay charged; None: all.
        """
        raise NotImplementedError

    async def adopt(self, keys: RouteKeys, *, worker: str, ids: Sequence[str]) -> list[Delivery]:
        """Take these parked entries, whatever their due time; those that another has by now are left out."""
        raise NotImplementedError

    async def audit(self, keys: RouteKeys) -> int:
        """Repair what deletion or eviction broke on a route; how many entries were mended or found lost."""
        raise NotImplementedError
