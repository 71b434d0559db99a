"""Tweaks: fields of a flow that an event sets for its own run, as far as the route allows it. Pure.

The shape is Langflow's: ``{"<component id or name>": {"<field>": value}}``, or ``{"<field>": value}`` for every
component that has the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runtime.engine.bindings import selected_providers
from runtime.engine.export import Export, Node
from runtime.engine.inputs import event_fault, nearest

Protected = Callable[[str, str, str], bool]
"""Tells by component type, field and field type what must never be set from outside."""


def read_tweaks(
    export: Export, tweaks: Mapping[str, Any], allowed: bool | tuple[str, ...], protected: Protected
) -> dict[str, dict[str, Any]]:
    """The fields to set, by component id. Raises EventFault naming what is refused, or unknown and the nearest."""
    if not tweaks:
        return {}
    if allowed is False:
        raise event_fault(
            "tweak_refused",
            f"the event sets fields ({', '.join(sorted(map(str, tweaks)))}), and the route allows no tweaks; "
            "set 'tweaks' in the route's spec, or leave them out",
        )
    found: dict[str, dict[str, Any]] = {}
    for key, value in tweaks.items():
        node = _component(export, str(key))
        if node is not None and isinstance(value, Mapping):
            fields = {str(field): one for field, one in value.items()}
            for field in fields:
                _known(export, node, field)
            found.setdefault(node.id, {}).update(fields)
        elif node is None and (owners := _owners(export, str(key))):
            for owner in owners:
                found.setdefault(owner.id, {})[str(key)] = value
        else:
            _unknown(export, str(key), node)
    for node_id, fields in found.items():
        for field, value in fields.items():
            _permitted(export.by_id[node_id], field, allowed, protected)
            _plain(export.by_id[node_id], field, value)
    return found


def chosen_providers(export: Export, fields: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """The model providers that an event chooses by its tweaks."""
    return frozenset(
        provider
        for component, values in fields.items()
        for name, value in values.items()
        if (export.by_id[component].template.get(name) or {}).get("type") == "model"
        for provider in selected_providers(value)
    )


def _component(export: Export, name: str) -> Node | None:
    if name in export.by_id:
        return export.by_id[name]
    named = [node for node in export.nodes if node.name == name]
    if len(named) > 1:
        ids = ", ".join(node.id for node in named)
        raise event_fault("tweak_unknown", f"tweaks: several components are called {name!r}; use an id: {ids}")
    return named[0] if named else None


def _owners(export: Export, field: str) -> list[Node]:
    return [n for n in export.nodes if isinstance(n.template.get(field), Mapping) and (n.id, field) not in export.fed]


def _unknown(export: Export, key: str, node: Node | None) -> None:
    if node is not None:
        raise event_fault("payload_invalid", f"tweaks: {key!r} is a component; expected an object of fields and values")
    known = [n.id for n in export.nodes] + [n.name for n in export.nodes]
    raise event_fault("tweak_unknown", f"tweaks: the flow has no component {key!r}{nearest(key, known)}")


def _known(export: Export, node: Node, field: str) -> None:
    where = f"component {node.name!r} ({node.id})"
    if not isinstance(node.template.get(field), Mapping):
        known = [name for name, _ in node.fields if name != "code"]
        raise event_fault(
            "tweak_unknown",
            f"tweaks: {where} has no field {field!r}{nearest(field, known)}",
            component_id=node.id,
            component_name=node.name,
        )
    if (node.id, field) in export.fed:
        raise event_fault(
            "tweak_refused",
            f"tweaks: field {field!r} of {where} gets its value from another component and cannot be set",
            component_id=node.id,
            component_name=node.name,
        )


def _plain(node: Node, field: str, value: Any) -> None:
    """Only a field's value may be set. With its other keys an event could read any variable through any field."""
    if not isinstance(value, Mapping) or node.template[field].get("type") in ("dict", "NestedDict", "mcp", "table"):
        return
    if others := sorted(set(map(str, value)) - {"value", "file_path"}):
        raise event_fault(
            "tweak_refused",
            f"tweaks: field {field!r} of component {node.name!r} ({node.id}): only its value may be set, "
            f"not {', '.join(others)}",
            component_id=node.id,
            component_name=node.name,
        )


def _permitted(node: Node, field: str, allowed: bool | tuple[str, ...], protected: Protected) -> None:
    described = node.template[field]
    where = f"field {field!r} of component {node.name!r} ({node.id})"
    reason = None
    if protected(node.type, field, str(described.get("type") or "")):
        reason = "is protected and can never be set by an event"
    elif allowed == ():
        if described.get("api_editable") is not True:
            reason = "is not among the fields that the flow declares as settable"
    elif isinstance(allowed, tuple) and not {f"{node.id}.{field}", f"{node.name}.{field}"} & set(allowed):
        reason = f"is not among the fields that the route lets events set ({', '.join(allowed)})"
    if reason is not None:
        raise event_fault("tweak_refused", f"tweaks: {where} {reason}", component_id=node.id, component_name=node.name)
