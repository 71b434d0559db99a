"""Which components of a flow a run executes. Pure.

The engine starts from the first webhook or chat input, runs what that reaches and what feeds it, and leaves out tools
that no agent uses (``lfx.graph.graph``: find_start_component_id, get_sorted_vertices, _orphaned_tool_vertex_ids).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from runtime.engine.export import Edge, Export

FILLED_BY_EVENTS = frozenset({"ChatInput", "TextInput", "Webhook"})
"""The input components: an event gives them their value."""


def running(export: Export) -> frozenset[str]:
    """The ids of the components that a run executes, as the engine chooses them."""
    start = start_component(export)
    known = export.by_id
    chosen = frozenset(known) if start is None else _connected(export.edges, start)
    return frozenset(i for i in chosen if i in known and not (known[i].tool_mode and i not in export.sources))


def start_component(export: Export) -> str | None:
    """Where the engine starts: the first input whose id speaks of a webhook, else of a chat; None: everywhere."""
    inputs = [n.id for n in export.nodes if FILLED_BY_EVENTS & {n.type, n.id.partition("-")[0]}]
    return next((i for word in ("webhook", "chat") for i in inputs if word in i.lower()), None)


def _connected(edges: Iterable[Edge], start: str) -> frozenset[str]:
    onward: dict[str, list[str]] = defaultdict(list)
    back: dict[str, list[str]] = defaultdict(list)
    for edge in edges:
        onward[edge.source].append(edge.target)
        back[edge.target].append(edge.source)
    return frozenset(_reach(_reach([start], onward), back))


def _reach(starts: Iterable[str], steps: Mapping[str, list[str]]) -> set[str]:
    seen = set(starts)
    todo = list(seen)
    while todo:
        new = [step for step in steps.get(todo.pop(), ()) if step not in seen]
        seen.update(new)
        todo.extend(new)
    return seen


def is_cyclic(export: Export, *, loops: bool = True) -> bool:
    """Whether the connections lead in a circle. Without ``loops``, those that a Loop component counts do not matter."""
    feeds: dict[str, set[str]] = {node.id: set() for node in export.nodes}
    for edge in export.edges:
        if edge.target in feeds and (loops or edge.field in export.by_id[edge.target].template):
            feeds[edge.target].add(edge.source)
    while free := [node for node, sources in feeds.items() if not sources & feeds.keys()]:
        for node in free:
            del feeds[node]
    return bool(feeds)
