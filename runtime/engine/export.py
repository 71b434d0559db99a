"""A Langflow export, read: its components, fields and edges. Pure; loads nothing of Langflow.

An export is ``{"id", "name", "data": {"nodes": [...], "edges": [...]}}``. A node's own data is ``node["data"]``: the
component's ``type`` and, under ``node``, its display name, outputs and ``template`` (a dict of fields). A group is a
node whose ``node.flow`` holds further nodes; the engine flattens groups before it runs them, and so do we here.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runtime.engine.groups import flatten, inner_graph

_FLOW_IDS = uuid.UUID("6f6c7f0e-3f0b-5d52-9a55-0f6d3c1c8d11")


@dataclass(frozen=True, slots=True)
class Node:
    """One component of a flow. ``template`` maps a field's name to its description, of which ``value`` is one key."""

    id: str
    type: str
    name: str
    template: Mapping[str, Any]
    body: Mapping[str, Any]
    """What stands under ``data.node``."""

    @property
    def fields(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The fields proper; the template also holds ``_type`` and bare strings."""
        return ((name, field) for name, field in self.template.items() if isinstance(field, Mapping))

    @property
    def code(self) -> str:
        """The component's saved source, or an empty string."""
        field = self.template.get("code")
        value = field.get("value") if isinstance(field, Mapping) else None
        if isinstance(value, list) and all(isinstance(line, str) for line in value):
            return "\n".join(value)  # as the server's download endpoint writes it; the registry joins it already
        return value if isinstance(value, str) else ""

    @property
    def tool_mode(self) -> bool:
        """Whether the component serves an agent as a tool."""
        return bool(self.body.get("tool_mode"))


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection from a component's output to a component's field."""

    source: str
    target: str
    field: str
    output: str = ""


@dataclass(frozen=True)
class Export:
    """One flow's export with its groups flattened and its notes left out."""

    flow_id: str
    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def by_id(self) -> Mapping[str, Node]:
        """The components by id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def order(self) -> Mapping[str, int]:
        """Each component's place in the file."""
        return {node.id: place for place, node in enumerate(self.nodes)}

    @cached_property
    def fed(self) -> frozenset[tuple[str, str]]:
        """The (component, field) pairs that an edge feeds."""
        return frozenset((edge.target, edge.field) for edge in self.edges)

    @cached_property
    def sources(self) -> frozenset[str]:
        """Components that feed another."""
        return frozenset(edge.source for edge in self.edges)

    def of_type(self, *kinds: str) -> tuple[Node, ...]:
        """The components of the given types, in the file's order."""
        return tuple(node for node in self.nodes if node.type in kinds)


def read_export(export: Mapping[str, Any], *, route: str) -> Export:
    """Read an export whose shape has been checked (see ``shape``). Missing parts read as empty."""
    data = flatten(graph_data(export))
    nodes = tuple(_nodes(data.get("nodes") or ()))
    edges = tuple(_edges(data))
    return Export(flow_uuid(export, route=route), str(export.get("name") or route), nodes, edges)


def graph_data(export: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that holds nodes and edges: under ``data``, or the export itself."""
    data = export.get("data", export)
    return data if isinstance(data, Mapping) else {}


def flat_export(export: Mapping[str, Any]) -> Mapping[str, Any]:
    """The export with its groups taken apart; itself where it has none."""
    data = graph_data(export)
    flat = flatten(data)
    if flat is data:
        return export
    return {**export, "data": flat} if isinstance(export.get("data"), Mapping) else flat


def flow_uuid(export: Mapping[str, Any], *, route: str) -> str:
    """The export's id if it is a UUID, else one derived from the route's name: the engine scopes by UUIDs only."""
    try:
        return str(uuid.UUID(str(export.get("id"))))
    except ValueError:
        return str(uuid.uuid5(_FLOW_IDS, route))


def is_note(node: Mapping[str, Any]) -> bool:
    """Whether a node is a sticky note of the canvas."""
    data = node.get("data")
    inner = data.get("type") if isinstance(data, Mapping) else None
    return node.get("type") == "noteNode" or inner in {"note", "noteNode"}


def raw_nodes(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every component node of a graph's JSON, those inside groups included (their group comes first)."""
    for node in data.get("nodes") or ():
        if not isinstance(node, Mapping) or is_note(node):
            continue
        yield node
        if (inner := inner_graph(node)) is not None:
            yield from raw_nodes(inner)


def _nodes(nodes: Iterable[Any]) -> Iterator[Node]:
    for node in raw_nodes({"nodes": nodes}):
        data = node.get("data")
        data = data if isinstance(data, Mapping) else {}
        body = data.get("node")
        body = body if isinstance(body, Mapping) else {}
        template = body.get("template")
        node_id = str(node.get("id") or data.get("id") or "")
        kind = str(data.get("type") or node_id.partition("-")[0])
        name = str(data.get("display_name") or body.get("display_name") or kind)
        yield Node(node_id, kind, name, template if isinstance(template, Mapping) else {}, body)


def _edges(data: Mapping[str, Any]) -> Iterator[Edge]:
    for edge in data.get("edges") or ():
        if not isinstance(edge, Mapping):
            continue
        handles = edge.get("data")
        handles = handles if isinstance(handles, Mapping) else {}
        target = handles.get("targetHandle")
        source = handles.get("sourceHandle")
        field = str(target.get("fieldName") or target.get("name") or "") if isinstance(target, Mapping) else ""
        output = str(source.get("name") or "") if isinstance(source, Mapping) else ""
        yield Edge(str(edge.get("source", "")), str(edge.get("target", "")), field, output)
