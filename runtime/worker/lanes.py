"""Lanes: what this worker runs for each route, and how far it has read the route's stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from runtime.broker.keys import RouteKeys
from runtime.engine.base import LoadedFlow
from runtime.registry.snapshot import Route


@dataclass(frozen=True, slots=True)
class ActiveRoute:
    """One version of a route, loaded. A run keeps the one it began with."""

    route: Route
    flow: LoadedFlow


@dataclass(slots=True, eq=False)
class Lane:
    """A route's stream as this worker reads it. Times are of the monotonic clock."""

    name: str
    keys: RouteKeys
    active: ActiveRoute | None = None
    """None while the route is unready: it is reported, and its stream is not read."""
    needs: tuple[str, ...] = ()
    stale: str | None = None
    error_code: str = ""
    refused: str = ""
    """Why Redis does not let its stream be read."""
    listening: bool = False
    """Its group exists and its lease is registered: it may be read."""
    closing: bool = False
    tail: str = "0-0"
    hungry: bool = True
    """There may be something to fetch right now."""
    next_look: float = 0.0
    """When to fetch though nothing tells of an entry: one is due then, say."""
    blocked: bool = False
    unsure: bool = False
    """A reply may have been lost: entries may be pending to this worker that it does not know of."""
    failures: int = 0
    """Looks at this lane that failed in a row: on a cluster its server may be away while others answer."""
    flights: dict[str, str] = field(default_factory=dict)
    """Entry id to token, of every delivery that is not settled."""
    read: frozenset[str] = frozenset()
    """The streams that routes read, this one's and all others': they are trimmed by nothing."""

    @property
    def quiet(self) -> bool:
        """Whether nothing is known to wait there: a glance tells whether anything does after all."""
        return not (self.hungry or self.blocked or self.failures) and self.readable

    @property
    def readable(self) -> bool:
        """Whether it may be fetched from."""
        return self.active is not None and self.listening and not self.closing

    def due(self, now: float) -> bool:
        """Whether it is time to fetch."""
        return self.hungry or now >= self.next_look

    def look_at(self, when: float) -> None:
        """Look again at ``when`` at the latest."""
        self.next_look = min(self.next_look, when)


class Lanes:
    """All lanes of this worker, by route name, in a rotating order so that none is always first.

    A closed lane stays among them, under nobody's name, until what it has in flight is settled: its lease must hold.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}
        self._closed: list[Lane] = []
        self._turn = 0

    def __iter__(self) -> Iterator[Lane]:
        return iter((*self._lanes.values(), *self._closed))

    def __len__(self) -> int:
        return len(self._lanes)

    def get(self, name: str) -> Lane | None:
        """The lane of a route."""
        return self._lanes.get(name)

    def open(self, name: str, keys: RouteKeys) -> Lane:
        """A lane for a route: a new one, or the closed one that reads the same as before."""
        lane = Lane(name, keys)
        for old in [old for old in self._closed if old.keys == keys]:
            self._closed.remove(old)
            if old.name == name:
                old.closing, old.hungry = False, True
                lane = old
            else:  # the route has another name now: whoever reads must know what is in flight
                lane.flights = old.flights
        self._lanes[name] = lane
        return lane

    def close(self, lane: Lane) -> None:
        """Fetch nothing more for a lane."""
        lane.closing = True
        if self._lanes.get(lane.name) is lane:
            del self._lanes[lane.name]
            self._closed.append(lane)

    def done(self) -> list[Lane]:
        """The closed lanes that have nothing in flight."""
        return [lane for lane in self._closed if not lane.flights]

    def forget(self, lane: Lane) -> None:
        """A closed lane whose group was left."""
        self._closed.remove(lane)

    def reset(self) -> None:
        """What is known of the streams belongs to an identity; the loaded flows do not.

        For a process that goes on under a new name, as one without a supervisor does.
        """
        self._closed.clear()
        for lane in self:
            lane.listening = lane.blocked = lane.unsure = False
            lane.tail, lane.hungry, lane.flights = "0-0", True, {}

    def rotated(self) -> list[Lane]:
        """All lanes, beginning with another one each time."""
        lanes = list(self._lanes.values())
        if not lanes:
            return lanes
        self._turn = (self._turn + 1) % len(lanes)
        return lanes[self._turn :] + lanes[: self._turn]

    @property
    def keys(self) -> list[RouteKeys]:
        """The keys of every lane, each once."""
        return list(dict.fromkeys(lane.keys for lane in self))
