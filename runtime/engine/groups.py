"""Groups of components, taken apart as the engine does it before a run (``lfx.graph.graph.utils.process_flow``). Pure.

A group is a node that holds a flow of its own. Its fields stand for fields of the components within (``proxy``), its
outputs for theirs, and connections lead to the group. Everything that asks which component a field or a connection
belongs to must look through that.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def inner_graph(node: Any) -> Mapping[str, Any] | None:
    """The graph inside a group; None for a component."""
    data = node.get("data") if isinstance(node, Mapping) else None
    body = data.get("node") if isinstance(data, Mapping) else None
    flow = body.get("flow") if isinstance(body, Mapping) else None
    inner = flow.get("data") if isinstance(flow, Mapping) else None
    return inner if isinstance(inner, Mapping) else None


def flatten(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A graph with the components and connections of its groups in their place; itself where it has no groups."""
    if not any(inner_graph(node) is not None for node in data.get("nodes") or ()):
        return data
    nodes = [copy.deepcopy(node) for node in data["nodes"]]
    edges = [copy.deepcopy(edge) for edge in data.get("edges") or () if isinstance(edge, dict)]
    while (place := next((i for i, node in enumerate(nodes) if inner_graph(node) is not None), None)) is not None:
        group = nodes[place]
        inner = inner_graph(group) or {}
        within = [node for node in inner.get("nodes") or () if isinstance(node, dict)]
        for edge in edges:
            _reconnect(edge, group, within)
        _hand_down(group["data"]["node"].get("template"), within)
        nodes[place : place + 1] = within
        edges += [edge for edge in inner.get("edges") or () if isinstance(edge, dict)]
    return {**data, "nodes": nodes, "edges": edges}


def _hand_down(template: Any, within: list[dict[str, Any]]) -> None:
    """Give the components within the fields that the group holds for them.

    A group within the group gets them with the outer one's ``proxy``, as with the engine: so its own do not go further.
    """
    for value in template.values() if isinstance(template, Mapping) else ():
        proxy = value.get("proxy") if isinstance(value, Mapping) else None
        if not isinstance(proxy, Mapping):
            continue
        name = str(proxy.get("field"))
        fields = _template(_find(within, proxy.get("id"))) or {}
        field = fields.get(name)
        if isinstance(field, Mapping):
            kept = {key: field[key] for key in ("show", "advanced", "display_name") if key in field}
            fields[name] = {**value, **kept, **({"type": "code"} if field.get("type") == "code" else {})}


def _reconnect(edge: dict[str, Any], group: Mapping[str, Any], within: list[dict[str, Any]]) -> None:
    handles = edge.get("data")
    if not isinstance(handles, dict):
        return
    if edge.get("target") == group.get("id") and isinstance(handle := handles.get("targetHandle"), dict):
        _retarget(edge, handle, within)
    if edge.get("source") == group.get("id") and isinstance(handle := handles.get("sourceHandle"), dict):
        _resource(edge, handle, group, within)


def _retarget(edge: dict[str, Any], handle: dict[str, Any], within: list[dict[str, Any]]) -> None:
    proxy = handle.pop("proxy", None)
    if not isinstance(proxy, Mapping):
        return
    edge["target"] = handle["id"] = proxy.get("id")
    name = handle["fieldName"] = str(proxy.get("field"))
    field = (_template(_find(within, proxy.get("id"))) or {}).get(name)
    if isinstance(field, Mapping) and isinstance(field.get("proxy"), Mapping):
        handle["proxy"] = field["proxy"]  # a group within the group


def _resource(
    edge: dict[str, Any], handle: dict[str, Any], group: Mapping[str, Any], within: list[dict[str, Any]]
) -> None:
    name = str(handle.get("name") or "")
    outputs = group["data"]["node"].get("outputs") or ()
    proxy = next((o.get("proxy") for o in outputs if isinstance(o, Mapping) and o.get("name") == name), None)
    if isinstance(proxy, Mapping):
        node_id, output = proxy.get("id"), proxy.get("name") or proxy.get("field")
    else:
        longest = sorted((str(node.get("id")) for node in within), key=len, reverse=True)
        node_id = next((i for i in longest if name.startswith(f"{i}_")), None)
        output = name.removeprefix(f"{node_id}_")
    if (node := _find(within, node_id)) is not None:
        edge["source"] = handle["id"] = node_id
        handle["name"] = output
        handle["dataType"] = node["data"].get("type")  # the engine reads a group's output names otherwise


def _find(nodes: list[dict[str, Any]], node_id: Any) -> dict[str, Any] | None:
    return next((node for node in nodes if node.get("id") == node_id), None)


def _template(node: Mapping[str, Any] | None) -> dict[str, Any] | None:
    body = ((node or {}).get("data") or {}).get("node")
    template = body.get("template") if isinstance(body, Mapping) else None
    return template if isinstance(template, dict) else None
