"""One script over many routes: a page of them costs what one would, in round trips and in work on both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from runtime.broker.connection import Connection
from runtime.broker.keys import RouteKeys
from runtime.broker.scripts import Call
from runtime.errors import BrokerError, BrokerUnavailable

PAGE = 250
"""Routes of one call: 2 to 4 ms of Redis' time. On a cluster only those of one slot share a call."""

Page = Sequence[int]
"""Routes, as positions in the list of all."""


async def ask(
    connection: Connection, routes: Sequence[RouteKeys], build: Callable[[Page], Call]
) -> list[tuple[Page, Any]]:
    """Call what ``build`` makes of each page, all in one round trip; each page with its reply, or its BrokerError.

    Of a page that Redis refuses, each route is asked for alone: one without permission must not take others along.
    Raises BrokerUnavailable if nothing was answered.
    """
    pages = _pages(connection, routes)
    asked = list(zip(pages, await connection.run_all([build(part) for part in pages]), strict=True))
    refused = [part for part, reply in asked if len(part) > 1 and _is_refusal(reply)]
    if not refused:
        return asked
    alone = [[i] for part in refused for i in part]
    again = await connection.run_all([build(part) for part in alone])
    return [one for one in asked if one[0] not in refused] + list(zip(alone, again, strict=True))


def by_place(connection: Connection, names: Sequence[str]) -> list[list[int]]:
    """The positions of keys in parts that one command may use."""
    parts: dict[int, list[int]] = {}
    for i, name in enumerate(names):
        parts.setdefault(connection.place(name), []).append(i)
    return list(parts.values())


def _pages(connection: Connection, routes: Sequence[RouteKeys]) -> list[Page]:
    parts = by_place(connection, [keys.stream for keys in routes])
    return [part[start : start + PAGE] for part in parts for start in range(0, len(part), PAGE)]


def _is_refusal(reply: Any) -> bool:
    return isinstance(reply, BrokerError) and not isinstance(reply, BrokerUnavailable)
