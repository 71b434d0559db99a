"""From an export to a template that is copied for each run. Imports lfx; loaded by LangflowEngine.prepare only."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lfx.graph.graph.base import Graph

from runtime.engine.base import FlowSource
from runtime.engine.export import Export, graph_data, read_export


@dataclass(frozen=True, slots=True)
class Template:
    """A loaded flow: the parsed graph, shared and never run, and the export it came from."""

    version: str
    source: FlowSource
    export: Export
    graph: Any

    @property
    def webhook(self) -> bool:
        """Whether the flow has a Webhook component, which gets the whole payload."""
        return bool(self.export.of_type("Webhook"))

    def copy(self, *, user_id: str, edit: Callable[[dict[str, Any]], None] | None = None) -> Any:
        """A graph for one run. ``edit`` may change the copy's JSON before its components are made."""
        before = None if edit is None else lambda graph: edit(graph.raw_graph_data)
        graph = self.graph.copy_for_run(user_id=user_id, before_instantiate=before)
        # copy_for_run makes the components after the graph has switched off their output caches; without this, loops
        # saved by 1.1-1.4 never end.
        graph._set_cache_to_vertices_in_cycle()
        graph._set_cache_if_listen_notify_components()
        return graph


def load_template(source: FlowSource, *, user_id: str) -> Template:
    """Load a flow. Blocks while components are imported and compiled: call it in a thread."""
    export: Mapping[str, Any] = source.export
    view = read_export(export, route=source.route)
    payload = copy.deepcopy(dict(graph_data(export)))
    graph = Graph.from_payload(
        payload, flow_id=view.flow_id, flow_name=view.name, user_id=user_id, instantiate_components=False
    )
    template = Template(source.version, source, view, graph)
    template.copy(user_id=user_id)
    return template
