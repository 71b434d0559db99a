"""What a flow needs and does not have: the words for it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from runtime.engine.export import Node


class NeedKind(StrEnum):
    """What is missing."""

    PACKAGE = "package"
    PROVIDER = "provider"
    COMPONENT = "component"
    SUBFLOW = "subflow"
    FILE = "file"
    MODEL = "model"
    VARIABLE = "variable"
    FIELD = "field"


class Stage(StrEnum):
    """When it is missed, and whose fault that is.

    LOAD: nothing can run, the route is unready. RUN: asked before each run, since an event, a tweak or a mended
    environment may bring it; without it the route is at fault. EVENT: each event must bring it, or is at fault itself.
    """

    LOAD = "load"
    RUN = "run"
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that is missing. ``message`` says exactly what to add and where; ``name`` is its name alone."""

    kind: NeedKind
    stage: Stage
    message: str
    name: str = ""
    component_id: str | None = None
    component_name: str | None = None
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """A need that something may meet before a run: any of these variables, or a tweak of any of these fields."""

    need: Need
    variables: frozenset[str] = frozenset()
    fields: frozenset[str] = field(default_factory=frozenset)

    def met(self, *, variables: Collection[str], tweaked: Collection[tuple[str, str]]) -> bool:
        """Whether it is met, given the names of the variables at hand and the (component, field) pairs a run sets."""
        if any(name in variables for name in self.variables):
            return True
        return any((self.need.component_id, name) in tweaked for name in self.fields)


def label(node: Node) -> str:
    """A component for people: its name and its id."""
    return f"component {node.name!r} ({node.id})"


def field_label(node: Node, name: str) -> str:
    """A field for people: its display name, and its name where that differs."""
    shown = str((node.template.get(name) or {}).get("display_name") or name)
    return repr(shown) if shown == name else f"{shown!r} ({name})"
