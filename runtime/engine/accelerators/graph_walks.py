"""Walk through a graph without leaving functions that refer to themselves, and to the graph.

Why: the engine sorts each layer of a graph, and looks for what may run next, by inner functions that call themselves.
Each lives on until the garbage collector finds it, and keeps the whole graph of an ended run with it (see ``remains``).
Safe because: the same steps in the same order, by functions that do not call themselves, or not by an inner name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target

_UTILS, _GRAPH = "lfx.graph.graph.utils", "lfx.graph.graph.base"

Successors = Callable[[str], list[str]]


class _Layer:
    """The vertices of one layer, and the last place in it of what each leads to."""

    def __init__(self, layer: list[str], successors: Successors) -> None:
        self._places = {vertex: place for place, vertex in enumerate(layer)}
        self._successors = successors
        self._known: dict[str, int] = {}
        self._under_way: set[str] = set()

    def last_place(self, vertex: str) -> int:
        """A vertex's own place, or the last of those behind it; of one that is under way, in a cycle, its own."""
        if vertex in self._known:
            return self._known[vertex]
        place = self._places[vertex]
        if vertex in self._under_way:
            return place
        self._under_way.add(vertex)
        for successor in self._successors(vertex):
            if successor in self._places:
                place = max(place, self.last_place(successor))
        self._under_way.remove(vertex)
        self._known[vertex] = place
        return place


def _install(patches: Patches) -> None:
    def make_sort(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def sort_single_layer_by_dependency(layer: list[str], get_vertex_successors: Successors) -> list[str]:
            if patches.off:
                sorted_: list[str] = original(layer, get_vertex_successors)
                return sorted_
            return sorted(layer, key=_Layer(layer, get_vertex_successors).last_place, reverse=True)

        return sort_single_layer_by_dependency

    def make_find(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def find_runnable_predecessors_for_successor(graph: Any, vertex_id: str) -> list[str]:
            if patches.off:
                found: list[str] = original(graph, vertex_id)
                return found
            return _runnable_before(graph, vertex_id)

        return find_runnable_predecessors_for_successor

    patches.replace(patches.module(_UTILS), "_sort_single_layer_by_dependency", make_sort)
    patches.replace(patches.module(_GRAPH).Graph, "find_runnable_predecessors_for_successor", make_find)


def _runnable_before(graph: Any, vertex_id: str) -> list[str]:
    """The nearest vertices before one that may run now, depth first."""
    before = graph.run_manager.run_predecessors
    runnable: list[str] = []
    visited: set[str] = set()
    ahead = list(reversed(before.get(vertex_id, [])))
    while ahead:
        predecessor = ahead.pop()
        if predecessor in visited:
            continue
        visited.add(predecessor)
        if graph.is_vertex_runnable(predecessor):
            runnable.append(predecessor)
        else:
            ahead.extend(reversed(before.get(predecessor, [])))
    return runnable


GRAPH_WALKS = Accelerator(
    name="graph_walks",
    targets=(
        Target(_UTILS, "_sort_single_layer_by_dependency", frozenset({"e2c21a12204b81aa"})),
        Target(_GRAPH, "Graph.find_runnable_predecessors_for_successor", frozenset({"7cc7bbed1063a76f"})),
    ),
    install=_install,
)
