"""Whether an export has the shape of one that the engine can load. Pure.

And quick: the engine itself needs 13 s to find out that an export of Langflow 0.x is none, and it silently drops edges
that lead nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from runtime.engine.export import Export, graph_data, is_note, raw_nodes, read_export
from runtime.errors import FlowInvalid, FlowUnready

NOT_A_FLOW = "this is not the export of a Langflow flow"


def check_shape(export: Mapping[str, Any], *, route: str) -> None:
    """Raise FlowInvalid for what is no flow, FlowUnready for one that does not fit the engine, saying why."""
    if not isinstance(export, Mapping):
        raise FlowInvalid(f"{NOT_A_FLOW}: expected a JSON object, found {type(export).__name__}")
    if "flows" in export and "data" not in export:
        raise FlowInvalid("this is a project export; its flows are registered one by one")
    data = graph_data(export)
    nodes = data.get("nodes")
    if not isinstance(nodes, list) or not isinstance(data.get("edges", []), list):
        raise FlowInvalid(f"{NOT_A_FLOW}: it has no list of nodes under data.nodes")
    for node in nodes:
        _check_node(node)
    components = [node for node in nodes if not is_note(node)]
    if not components:
        raise FlowInvalid("the flow has no components")
    counts = Counter(str(node.get("id")) for node in raw_nodes(data))
    if twice := [node_id for node_id, count in counts.items() if count > 1]:
        raise FlowInvalid(f"{NOT_A_FLOW}: two components share the id {twice[0]!r}")
    if old := [problem for node in raw_nodes(data) if (problem := _too_old(node))]:
        raise FlowUnready(needs=(f"{_saved_by(export)}: {old[0]}; open the flow in Langflow 1.x and export it again",))
    if needs := tuple(_loose_edges(read_export(export, route=route), data)):
        raise FlowUnready(needs=needs)


def _check_node(node: Any) -> None:
    if not isinstance(node, Mapping) or not isinstance(node.get("data"), Mapping):
        raise FlowInvalid(f"{NOT_A_FLOW}: a node has no data")
    if is_note(node):
        return
    body = node["data"].get("node")
    if not node.get("id") or not isinstance(body, Mapping):
        raise FlowInvalid(f"{NOT_A_FLOW}: the node {node.get('id')!r} has no component (data.node)")
    if "flow" not in body and not isinstance(body.get("template"), Mapping):
        raise FlowInvalid(f"{NOT_A_FLOW}: the component {node['id']} has no fields (data.node.template)")


def _too_old(node: Mapping[str, Any]) -> str | None:
    """What tells that a component was saved by Langflow 0.x: its code (to 0.4) or its outputs are not saved with it."""
    body = node["data"].get("node") or {}
    if "flow" in body:
        return None
    code = (body.get("template") or {}).get("code")
    sourced = isinstance(code, Mapping) and code.get("value")
    if sourced and "outputs" in body:
        return None
    name = body.get("display_name") or node["data"].get("type") or node.get("id")
    return f"component {name!r} ({node.get('id')}) carries no {'list of outputs' if sourced else 'code'}"


def _saved_by(export: Mapping[str, Any]) -> str:
    version = export.get("last_tested_version")
    return f"saved by Langflow {version}" if version else "saved by Langflow 0.x, it seems"


def _loose_edges(export: Export, data: Mapping[str, Any]) -> Iterator[str]:
    """Edges that lead to nothing: the engine would run the flow without them."""
    known = {str(node.get("id")) for node in raw_nodes(data)}
    for edge in export.edges:
        for end in (edge.source, edge.target):
            if end not in known:
                yield f"draw the connection {edge.source} -> {edge.target} anew: the component {end!r} does not exist"
        node = export.by_id.get(edge.target)
        if node is None or not edge.field or isinstance(node.template.get(edge.field), Mapping):
            continue
        if edge.field not in {str(o.get("name")) for o in node.body.get("outputs") or () if isinstance(o, Mapping)}:
            yield (
                f"draw the connection from {edge.source} anew: component {node.name!r} ({node.id}) "
                f"has no field {edge.field!r}"
            )
