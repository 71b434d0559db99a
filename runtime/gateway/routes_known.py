"""The routes that workers have registered, as the gateway knows them: looked up in Redis, kept for a moment."""

from __future__ import annotations

import asyncio
import difflib
import json
import time
from functools import lru_cache

from pydantic import ValidationError

from runtime.broker.client import Broker
from runtime.broker.fleet import RouteEntry
from runtime.broker.keys import RouteKeys
from runtime.errors import RouteInvalid, RouteNotFound
from shared_models.route import RouteSpec

FRESH = 2.0
"""Seconds that the list is kept."""

AGAIN = 0.25
"""Seconds after which it is asked for anew where a name is not in it: the route may just have been added."""


class KnownRoutes:
    """The fleet's routes by name. Several requests that find it stale ask once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._routes: dict[str, RouteEntry] = {}
        self._read = float("-inf")
        self._turn = asyncio.Lock()

    async def get(self, name: str) -> RouteEntry:
        """A route. Raises RouteNotFound naming near ones, and BrokerUnavailable."""
        routes = await self._at_most(FRESH)
        if name not in routes:
            routes = await self._at_most(AGAIN)
        if name in routes and not routes[name].internal:
            return routes[name]
        near = difflib.get_close_matches(name, routes, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise RouteNotFound(f"there is no route {name[:80]!r}{hint}")

    async def all(self) -> dict[str, RouteEntry]:
        """Every route by name, in order."""
        return await self._at_most(FRESH)

    async def _at_most(self, age: float) -> dict[str, RouteEntry]:
        if time.monotonic() - self._read > age:
            async with self._turn:
                if time.monotonic() - self._read > age:
                    self._routes = await self._broker.fleet.routes()
                    self._read = time.monotonic()
        return self._routes


def spec_of(route: RouteEntry) -> RouteSpec:
    """What the route's spec says to a gateway. What a newer worker tells and this version does not know is left out."""
    known = {name: value for name, value in route.ingress.items() if name in RouteSpec.model_fields}
    try:
        return _spec(json.dumps(known, sort_keys=True))
    except ValidationError as error:
        raise RouteInvalid(f"route {route.route}: its spec is of a version that this gateway does not know") from error


@lru_cache(maxsize=1024)
def _spec(text: str) -> RouteSpec:
    return RouteSpec.model_validate_json(text)


def keys_of(route: RouteEntry) -> RouteKeys:
    """The keys of a route."""
    return RouteKeys(route.stream, route.group)
