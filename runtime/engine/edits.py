"""What a run changes in the copy of its flow's JSON before components are made of it. Imports lfx."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lfx.processing.process import apply_tweaks

from runtime.engine.bindings import Bindings, bind
from runtime.engine.export import raw_nodes
from runtime.engine.streaming import set_streaming
from runtime.engine.tables import fill_cells

Fields = dict[str, dict[str, Any]]
"""Values by component and field."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Key fields get their standard variables, cells their variables' values, fields their tweaks."""

    bindings: Bindings
    cells: frozenset[str]
    """What the flow's table cells name, which may be variables."""
    variables: Mapping[str, str]
    stream: bool
    fields: Fields

    def __call__(self, data: dict[str, Any]) -> None:
        """Change a flow's JSON in place."""
        bind(data, {field: name for field, name in self.bindings.items() if name in self.variables})
        fill_cells(data, self.variables)
        set_streaming(data, wanted=self.stream)
        for node in raw_nodes(data):
            if fields := self.fields.get(str(node.get("id"))):
                apply_tweaks(node, fields)

    @property
    def key(self) -> Hashable | None:
        """What the edited JSON depends on, but for the variables' values; None where it is this event's alone."""
        if self.fields:
            return None
        named = self.cells.union(self.bindings.values())
        return frozenset(name for name in named if name in self.variables), self.stream

    def with_values(self, mark: str) -> Edit:
        """The edit that a run with other values of the same variables would do."""
        return replace(self, variables={name: f"{mark} {name}" for name in self.variables})
