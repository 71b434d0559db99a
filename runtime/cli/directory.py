"""Which routes there are: what workers have registered in Redis, and what lies in the local folder."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.broker.client import Broker
    from runtime.broker.fleet import RouteEntry
    from runtime.broker.keys import RouteKeys
    from runtime.registry.snapshot import Route, Snapshot


class Directory:
    """The known routes, by name."""

    def __init__(self, routes: Mapping[str, RouteEntry]) -> None:
        self.routes = dict(sorted(routes.items()))

    @classmethod
    async def load(cls, broker: Broker, flows: Path) -> Directory:
        """The routes that workers have registered; where there are none at all, those of the folder."""
        routes = await broker.fleet.routes()
        return cls(routes or {name: entry_of(route) for name, route in scan_folder(flows).routes.items()})

    def readers(self, stream: str) -> list[RouteEntry]:
        """The routes that read a stream."""
        return [route for route in self.routes.values() if route.stream == stream]

    def named(self, route: str) -> RouteEntry:
        """A route by its name. Raises RouteNotFound naming near ones."""
        if route in self.routes:
            return self.routes[route]
        raise not_found(f"there is no route {route!r}", route, self.routes)

    def chosen(self, route: str | None) -> list[RouteEntry]:
        """The one route, or all of them."""
        return [self.named(route)] if route else list(self.routes.values())


def not_found(what: str, name: str, known: Iterable[str]) -> Exception:
    """A RouteNotFound that names near ones, or says what there is."""
    from runtime.errors import RouteNotFound

    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3)
    if near:
        return RouteNotFound(f"{what}; did you mean {' or '.join(near)}?")
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return RouteNotFound(
        f"{what}; " + (f"there are {listed}" if names else "no route is registered: is a worker running?")
    )


def scan_folder(flows: Path) -> Snapshot:
    """The routes of the local folder; none if there is no such folder."""
    from runtime.registry.scan import scan
    from runtime.registry.snapshot import Snapshot

    return scan(flows) if flows.is_dir() else Snapshot()


def entry_of(route: Route) -> RouteEntry:
    """A route of the folder as workers would register it."""
    from runtime.broker.fleet import RouteEntry
    from runtime.registry.snapshot import ingress_of

    return RouteEntry(
        route=route.name,
        stream=route.stream,
        group=route.group,
        dead_letters=route.dead_letters,
        results=route.results,
        version=route.version,
        ingress=ingress_of(route.spec),
    )


def keys_of(route: RouteEntry) -> RouteKeys:
    """The keys of a route."""
    from runtime.broker.keys import RouteKeys

    return RouteKeys(route.stream, route.group)
