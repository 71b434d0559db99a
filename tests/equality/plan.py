"""What is run: flows, each several times with inputs of its own, under sets of accelerators.

Pure: both sides read it as JSON. Knows nothing of either side, since the stock engine's process imports it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RUNS = tuple(range(8))
"""The runs that are made side by side: the first four within sessions of their own, the others without one."""
AGAIN = tuple(range(8, 12))
"""A second turn in each of the sessions."""
_TURN = len(RUNS)
_SESSIONS = len(AGAIN)
_WORDS = "abcdefghijkl"


@dataclass(frozen=True)
class Run:
    """One run of a flow. Everything that goes into it holds its mark, and no other run's."""

    index: int

    @property
    def mark(self) -> str:
        """The word by which this run's text, key and file are told from another's."""
        return f"county-{_WORDS[self.index]}"

    @property
    def text(self) -> str:
        """The input."""
        return f"What is the tallest mountain of {self.mark}?"

    @property
    def key(self) -> str:
        """The key for the model's provider."""
        return f"key-of-{self.mark}"

    @property
    def session(self) -> str | None:
        """The session; None for a run without one. A second turn is in the first one's."""
        first = self.index % _TURN
        return f"session-of-county-{_WORDS[first]}" if first < _SESSIONS else None

    @property
    def report(self) -> str:
        """What stands in the file of a flow that reads one."""
        return f"Net income rose in {self.mark}. What a quarter!"

    @property
    def like(self) -> int:
        """The first run of the same kind: what becomes of both differs by their marks alone."""
        return _SESSIONS if self.session is None else 0


@dataclass(frozen=True)
class Case:
    """One flow. ``path`` is its export, ``reads`` the component that is to be given a file, if one is.

    ``checked``: our checks before a run find nothing amiss; else it is run without them, so that the engine's own error
    comes. ``fails``: it fails, so there is no second turn: ours remembers nothing of a failed attempt.
    """

    route: str
    path: str
    reads: str | None = None
    checked: bool = True
    fails: bool = False

    def export(self) -> dict[str, Any]:
        """The flow."""
        export: dict[str, Any] = json.loads(Path(self.path).read_text(encoding="utf-8"))
        return export

    def runs(self, indices: tuple[int, ...] | list[int]) -> list[Run]:
        """These of its runs."""
        return [Run(index) for index in indices if index < _TURN or not self.fails]


@dataclass(frozen=True)
class Set:
    """One set of accelerators, and what is run under it.

    ``switches`` are the engine's, ``without`` a run's own. The runs of a stage are made side by side, the stages one
    after the other. ``shipped``: the flows' own components are taken for some that Langflow ships.
    """

    switches: Mapping[str, bool]
    routes: tuple[str, ...]
    stages: tuple[tuple[int, ...], ...]
    without: tuple[str, ...] = ()
    shipped: bool = False


@dataclass(frozen=True)
class Plan:
    """The flows, the runs that the stock engine makes of each, one by one, and the sets under which ours makes them."""

    cases: tuple[Case, ...]
    stock: tuple[int, ...]
    sets: Mapping[str, Set] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Keep it for the two processes."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The plan that was kept."""
        data = json.loads(path.read_text(encoding="utf-8"))
        cases = tuple(Case(**case) for case in data["cases"])
        return cls(cases, tuple(data["stock"]), {name: Set(**one) for name, one in data["sets"].items()})

    def case(self, route: str) -> Case:
        """The flow of a route."""
        return next(case for case in self.cases if case.route == route)
