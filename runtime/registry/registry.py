"""The registry: the flows folder as a snapshot of routes, of which the last good version of each is kept.

What is broken, in conflict or cannot be seen never replaces what ran. Only a file that is gone takes its route along.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from runtime.errors import RouteConflict
from runtime.registry.candidates import Found, Reader
from runtime.registry.files import Listing, look
from runtime.registry.snapshot import Problem, Route, Snapshot


class Registry:
    """The routes of one flows folder (or of one flow file). Its calls read the disk; they block."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._reader = Reader(root)
        self._listing = Listing()
        self._snapshot: Snapshot | None = None
        self._lock = threading.Lock()

    def rescan(self) -> Snapshot:
        """Read the folder. Answers with the very snapshot of before where nothing has changed; raises nothing."""
        with self._lock:
            # Looked at before it is read: what changes in between is seen by the next look.
            self._listing = look(self.root)
            found = self._reader.read(self._listing)
            before = self._snapshot or Snapshot()
            fresh = self._settled(found, before)
            if self._snapshot is None or fresh != self._snapshot:
                self._snapshot = fresh
            return self._snapshot

    @property
    def snapshot(self) -> Snapshot | None:
        """That of the last rescan, in this process or in the one that it was forked from."""
        return self._snapshot

    def differs(self) -> bool:
        """Whether the folder may have changed since the last rescan. Reads no file."""
        with self._lock:
            return self._listing.fresh or look(self.root).signature != self._listing.signature

    def _settled(self, found: Found, before: Snapshot) -> Snapshot:
        disabled = {route.name: route for route in found.candidates if not route.spec.enabled}
        chosen = self._without_collisions([route for route in found.candidates if route.spec.enabled], found)
        kept = {
            name: _stale(before.routes[name], why) for name, why in _lost(found, before).items() if name not in chosen
        }
        while clashes := _clashes({**chosen, **kept}, among=chosen):
            for names in clashes:
                self._refuse(names, chosen, kept, found, before)
        routes = {name: _same(route, before) for name, route in sorted({**chosen, **kept}.items())}
        problems = sorted(found.problems, key=lambda p: (str(p.path), p.route or "", p.message))
        idle = {name: route for name, route in sorted(disabled.items()) if name not in routes}
        return Snapshot(MappingProxyType(routes), tuple(problems), MappingProxyType(idle))

    def _without_collisions(self, routes: Iterable[Route], found: Found) -> dict[str, Route]:
        """The candidates by name; of those that share one, none."""
        named: dict[str, list[Route]] = defaultdict(list)
        for route in routes:
            named[route.name].append(route)
        for name, those in named.items():
            if len(those) > 1:
                files = self._listed(those)
                message = f"{files} give routes of one name, {name!r}; rename one, or set `enabled: false` in its spec"
                for path in sorted({route.path for route in those}):
                    found.problems.append(Problem(path, name, RouteConflict.code, message))
                found.broken_names.setdefault(name, message)
        return {name: those[0] for name, those in named.items() if len(those) == 1}

    def _refuse(
        self,
        names: list[str],
        chosen: dict[str, Route],
        kept: dict[str, Route],
        found: Found,
        before: Snapshot,
    ) -> None:
        """Take what clashes out of the chosen; what ran of it before goes on as it was."""
        those = [chosen.get(name) or kept[name] for name in names]
        stream, group = those[0].stream, those[0].group
        message = (
            f"{self._listed(those)} both read the stream {stream!r} in the group {group!r}; give one another group"
        )
        for name in names:
            if (route := chosen.pop(name, None)) is not None:
                found.problems.append(Problem(route.spec_path or route.path, name, RouteConflict.code, message))
                if name in before.routes:
                    kept[name] = _stale(before.routes[name], message)

    def _listed(self, routes: Iterable[Route]) -> str:
        shown = [self._reader.shown(route.path) for route in routes]
        return " and ".join(shown if len(set(shown)) > 1 else [f"two flows of {shown[0]}"])


def _lost(found: Found, before: Snapshot) -> dict[str, str]:
    """The routes of before of which nothing can be told now, with the reason."""
    lost: dict[str, str] = {}
    for name, route in before.routes.items():
        folders = (route.path, *route.path.parents)
        why = found.broken_names.get(name) or next(
            (found.broken_paths[p] for p in folders if p in found.broken_paths), None
        )
        if why:
            lost[name] = why
    return lost


def _clashes(routes: Mapping[str, Route], *, among: Mapping[str, Route]) -> list[list[str]]:
    """The names of routes that read one stream in one group, if one of ``among`` is with them."""
    readers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, route in sorted(routes.items()):
        readers[(route.stream, route.group)].append(name)
    return [names for names in readers.values() if len(names) > 1 and any(name in among for name in names)]


def _stale(route: Route, why: str) -> Route:
    return route if route.stale == why else replace(route, stale=why)


def _same(route: Route, before: Snapshot) -> Route:
    """The route object of before if it says the same: what holds it sees at once that nothing has changed."""
    known = before.routes.get(route.name)
    return known if known is not None and known == route else route
