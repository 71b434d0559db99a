"""A flow together with the flows it runs: what they need, and how each is handed to the engine."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from runtime.engine import catalog
from runtime.engine.base import FlowSource
from runtime.engine.bindings import bind, standard_bindings
from runtime.engine.export import flat_export, graph_data, raw_nodes, read_export
from runtime.engine.files import place_stored_files
from runtime.engine.requirements import RUNS_FLOW, Requirements, analyse, find_child


def prepared(source: FlowSource) -> FlowSource:
    """The flow with its export as it is to be run: without groups, upgraded in memory if the route wants that."""
    export = flat_export(source.export)
    if source.upgrade:
        export = importlib.import_module("runtime.engine.upgrade").apply_safe_upgrades(export)
    return replace(source, export=export)


def members(source: FlowSource, siblings: Mapping[str, FlowSource]) -> tuple[FlowSource, ...]:
    """The flow and all flows that it runs, directly or through others, each once."""
    found = {source.route: source}
    todo = [source]
    while todo:
        for flow_id, name in _children(todo.pop()):
            child = find_child(siblings, flow_id=flow_id, flow_name=name)
            if child is not None and child.route not in found:
                found[child.route] = child
                todo.append(child)
    return tuple(found.values())


def _children(source: FlowSource) -> Iterator[tuple[str, str]]:
    for node in read_export(source.export, route=source.route).nodes:
        if node.type in RUNS_FLOW:
            flow_id, name = (str((node.template.get(f) or {}).get("value") or "") for f in RUNS_FLOW[node.type])
            yield flow_id, name


def requirements(source: FlowSource, siblings: Mapping[str, FlowSource]) -> Requirements:
    """What a flow and the flows it runs need, as one. Files are asked of events for the flow itself only."""
    parts = [analyse(with_bindings(member), siblings, catalog.installed()) for member in members(source, siblings)]
    return Requirements(
        missing=tuple(dict.fromkeys(need for part in parts for need in part.missing)),
        conditions=tuple(condition for part in parts for condition in part.conditions),
        wants_files=parts[0].wants_files,
        variables=frozenset().union(*(part.variables for part in parts)),
        providers=frozenset().union(*(part.providers for part in parts)),
        remarks=parts[0].remarks,
    )


def with_bindings(source: FlowSource) -> FlowSource:
    """The flow with its empty key fields bound to their standard variables."""
    export = copy.deepcopy(dict(flat_export(source.export)))
    data = graph_data(export)
    bind(data, standard_bindings(data, catalog.installed()))
    return replace(source, export=export)


def payload(source: FlowSource) -> dict[str, Any]:
    """The graph's JSON of a flow, ready for the engine: stored files in their place.

    ``field_order`` is filled in where it lacks: Run Flow passes a child its input by it, and else loses it silently.
    """
    data = copy.deepcopy(dict(graph_data(flat_export(source.export))))
    data.setdefault("edges", [])
    place_stored_files(data, source.files_dir)
    for node in raw_nodes(data):
        body = node["data"]["node"]
        if not body.get("field_order"):
            body["field_order"] = [name for name in body.get("template") or () if name not in ("_type", "code")]
    return data


def secrets(source: FlowSource) -> tuple[str, ...]:
    """The secrets that stand literally in a flow's file, which no message may show."""
    nodes = read_export(source.export, route=source.route).nodes
    values = (
        field.get("value")
        for node in nodes
        for _, field in node.fields
        if field.get("password") and not field.get("load_from_db")
    )
    return tuple(dict.fromkeys(value for value in values if isinstance(value, str) and value))
