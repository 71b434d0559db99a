"""Recovery: entries of workers that are gone, and what operators or evictions broke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime.broker import pages
from runtime.broker.connection import Connection
from runtime.broker.delivery import Delivery
from runtime.broker.keys import RouteKeys
from runtime.broker.reader import delivery
from runtime.broker.scripts import Call, call, refuse
from runtime.errors import BrokerError, BrokerUnavailable

MAX_DELIVERIES = 9
"""How often an entry may be lost with its worker before it counts as poison (twice three attempts, and three)."""

SWEEP_PAGE = 80
"""Entries that one call of the sweep moves: of a million pending ones, less than 5 ms of Redis' time."""

AUDIT_PAGE = 500
"""Parked entries that one call of the audit looks at: about 2.5 ms of Redis' time."""

AUDIT_TOGETHER = 50
"""Routes that are audited in one round trip, as far as a page is enough for all of them."""

PATROL_PAGE = 150
"""Routes that one call of the patrol looks over at most: about 2 ms of Redis' time, without their consumers."""

PATROL_CONSUMERS = 400
"""Consumers after which a call of the patrol looks over no further route: about 2 ms of Redis' time.

One route's are looked at together, however many: of 400, 6 ms.
"""

UNKNOWN = "*"
"""An obituary that blames every running attempt."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did: entries moved, consumers removed, ids that killed their workers too often.

    Take ``poison`` with ``Recovery.adopt`` and dead-letter it undecoded; left alone, the audit hands it out again.
    """

    moved: int = 0
    removed: int = 0
    poison: tuple[str, ...] = ()


class Recovery:
    """Hands on what dead workers held. Raises GroupMissing and BrokerUnavailable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def sweep(
        self,
        keys: RouteKeys,
        *,
        lease: float,
        gap: float,
        idle: float,
        page: int = SWEEP_PAGE,
        max_deliveries: int = MAX_DELIVERIES,
    ) -> Swept:
        """Park a page of entries whose worker's lease has ended; times in seconds. Call again while moved == page.

        ``gap``: a longer pause since the last sweep gives everybody one ``lease`` of grace. ``idle``: how long a
        consumer without any lease may do nothing before it counts as gone.
        """
        times = (int(lease * 1000), int(gap * 1000), int(idle * 1000))
        return await self._sweep(keys, page, *times, max_deliveries, "", "")

    async def patrol(
        self, routes: Sequence[RouteKeys], *, lease: float, gap: float, idle: float
    ) -> list[bool | BrokerError]:
        """Whether each route needs a ``sweep``; or the error, of one that cannot be asked.

        One call after the other, so that others' commands come between them. Times in seconds, as the sweep's. Counts
        as one: a route that needs none was swept.
        """
        times = (int(lease * 1000), int(gap * 1000), int(idle * 1000))

        def call_for(part: pages.Page) -> Call:
            some = [routes[batch[i]] for i in part]
            names = [name for keys in some for name in (keys.stream, keys.leases, keys.obits)]
            return call("patrol", names, *times, PATROL_CONSUMERS, *(keys.group for keys in some))

        found: list[bool | BrokerError] = [False] * len(routes)
        left, answered = list(range(len(routes))), False
        while left:
            batch, left = left[:PATROL_PAGE], left[PATROL_PAGE:]
            replies: list[tuple[pages.Page, Any]]
            try:
                replies, answered = await pages.ask(self._connection, [routes[i] for i in batch], call_for), True
            except BrokerUnavailable as error:
                if not answered:
                    raise
                replies = [(range(len(batch)), error)]  # of a cluster's servers one may be away
            for part, reply in replies:
                asked = [batch[i] for i in part]
                if isinstance(reply, BrokerError):
                    for i in asked:
                        found[i] = reply
                    continue
                looked, *needed = reply
                for number in needed:
                    found[asked[number - 1]] = True
                left += asked[looked:]
        return found

    async def declare_dead(self, keys: RouteKeys, *, worker: str, blame: Sequence[str] | None) -> Swept:
        """Hand on all entries of a worker that is known to have ended. Never before its process was waited for.

        ``blame``: the tokens whose attempts stay charged; None: all.
        """
        told = UNKNOWN if blame is None else f" {' '.join(blame)} "
        moved, removed, poison = 0, 0, list[str]()
        while True:
            swept = await self._sweep(keys, SWEEP_PAGE, 0, 0, 0, MAX_DELIVERIES, worker, told)
            moved, removed = moved + swept.moved, removed + swept.removed
            poison += swept.poison
            if swept.moved < SWEEP_PAGE:
                return Swept(moved, removed, tuple(poison))

    async def adopt(self, keys: RouteKeys, *, worker: str, ids: Sequence[str]) -> list[Delivery]:
        """Take these parked entries, whatever their due time; those that another has by now are left out.

        Raises LeaseLost too.
        """
        if not ids:
            return []
        reply = await self._connection.run(
            call("adopt", [keys.stream, keys.due, keys.leases], keys.group, worker, *ids)
        )
        if reply[0] < 0:
            raise refuse(reply[0])
        return [delivery(entry) for entry in reply[1]]

    async def audit(self, keys: RouteKeys) -> int:
        """Repair what deletion or eviction broke on a route; how many entries were mended or found lost.

        Also forgets workers a day after their death, and trims what every group of the stream has settled.
        """
        (repaired,) = await self.audit_on([keys])
        if isinstance(repaired, BrokerError):
            raise repaired
        return repaired

    async def audit_on(self, routes: Sequence[RouteKeys]) -> list[int | BrokerError]:
        """The same of many routes; the number or the error for each, in order.

        No round trip takes Redis more time than one page does: routes with few parked entries share one, the others
        are asked one by one.
        """
        found = list[int | BrokerError]()
        for start in range(0, len(routes), AUDIT_TOGETHER):
            batch = routes[start : start + AUDIT_TOGETHER]
            try:
                found += await self._audit_some(batch)
            except BrokerUnavailable as error:
                if not found:
                    raise
                found += [error] * len(batch)  # of a cluster's servers one may be away
        return found

    async def _audit_some(self, routes: Sequence[RouteKeys]) -> list[int | BrokerError]:
        few = AUDIT_PAGE // AUDIT_TOGETHER
        replies = await self._connection.run_all([_audit(keys, "-", few) for keys in routes])
        found = list[int | BrokerError]()
        for keys, reply in zip(routes, replies, strict=True):
            repaired, start = _audited(reply)
            while start and not isinstance(repaired, BrokerError):
                more, start = await self._audit_rest(keys, start)
                repaired = more if isinstance(more, BrokerError) else repaired + more
            found.append(repaired)
        return found

    async def _audit_rest(self, keys: RouteKeys, start: str) -> tuple[int | BrokerError, str]:
        try:
            (reply,) = await self._connection.run_all([_audit(keys, start, AUDIT_PAGE)])
        except BrokerUnavailable as error:
            return error, ""
        return _audited(reply)

    async def _sweep(self, keys: RouteKeys, *args: Any) -> Swept:
        reply = await self._connection.run(
            call("sweep", [keys.stream, keys.due, keys.leases, keys.obits], keys.group, *args)
        )
        if reply[0] < 0:
            raise refuse(reply[0])
        if reply[0] == 2:
            return Swept()  # Redis or this sweeper was away: the others must have time to renew
        return Swept(reply[1], reply[2], tuple(entry_id.decode() for entry_id in reply[3]))


def _audit(keys: RouteKeys, start: str, page: int) -> Call:
    return call("audit", [keys.stream, keys.due, keys.leases, keys.obits], keys.group, start, page)


def _audited(reply: Any) -> tuple[int | BrokerError, str]:
    """How many entries an audit's page mended or found lost, or the error; and where the next page starts, if any."""
    if isinstance(reply, BrokerError):
        return reply, ""
    if reply[0] < 0:
        return refuse(reply[0]), ""
    return reply[0] + reply[1], reply[2].decode()
