"""How a flow's saved components compare with the installed ones, and the engine's safe upgrade, in memory.

The comparison is the engine's own (``lfx.upgrade``) against the core component index, which is one file: 10 ms, where
loading every extension bundle would take 14 s. Components of bundles and of users are not in it and count as fine when
what they import is installed: the engine runs the code that is saved with the flow.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from runtime.engine.bridges import bridged, model_edges, repoint
from runtime.engine.catalog import Catalog
from runtime.engine.export import Node, graph_data, raw_nodes, read_export
from runtime.engine.imports import imports_of


class ComponentState(StrEnum):
    """How a saved component stands to what is installed."""

    OK = "ok"
    OUTDATED_SAFE = "outdated_safe"
    OUTDATED_BREAKING = "outdated_breaking"
    MISSING_PACKAGE = "missing_package"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ComponentVerdict:
    """One component's state. ``saved_by`` is the version that saved it ("" if the file does not say)."""

    id: str
    name: str
    type: str
    state: ComponentState
    saved_by: str = ""
    note: str = ""


def component_verdicts(export: Mapping[str, Any], catalog: Catalog) -> list[ComponentVerdict]:
    """A verdict for every component of an export, in the file's order. Never raises for its content."""
    registry = _registry()
    verdicts = []
    for node in read_export(export, route="").nodes:
        state, note = _state(node, registry, catalog)
        saved_by = str(node.body.get("lf_version") or "")
        verdicts.append(ComponentVerdict(node.id, node.name, node.type, state, saved_by, note))
    return verdicts


def apply_safe_upgrades(export: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``export`` with the installed code in every component where that is safe; ``export`` is not changed.

    Safe is what the engine calls so: the saved outputs, inputs and required fields still fit. Agents saved by 1.2
    to 1.7 are bridged first: see ``runtime.engine.bridges``. All others stay as they are saved.
    """
    registry = _registry()
    data = copy.deepcopy(dict(graph_data(export)))
    for node in raw_nodes(data):
        kind, body = _type(node), _body(node)
        entry = registry.get(kind)
        if body is None or entry is None:
            continue
        edges = model_edges(data.get("edges") or (), str(node.get("id")))
        upgraded = bridged(kind, body, entry, connected=bool(edges))
        if _classified(upgraded, kind, registry) == "outdated_safe":
            _stamp(upgraded, entry)
            body.clear()
            body.update(upgraded)
            for edge in edges:
                repoint(edge)
    return {**export, "data": data} if isinstance(export.get("data"), Mapping) else {**export, **data}


def saved_by(export: Mapping[str, Any]) -> str:
    """The newest version that the file says it was saved by, or "" (exports made through the API do not say)."""
    if isinstance(version := export.get("last_tested_version"), str) and version:
        return version
    versions = [str(node.body["lf_version"]) for node in read_export(export, route="").nodes if _versioned(node)]
    return max(versions, key=_numbers, default="")


def _versioned(node: Node) -> bool:
    return bool(node.body.get("lf_version"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def _state(node: Node, registry: Mapping[str, Any], catalog: Catalog) -> tuple[ComponentState, str]:
    absent = sorted(m for m in imports_of(node.code).needed if not catalog.has_module(m))
    if absent:
        return ComponentState.MISSING_PACKAGE, "pip install " + " ".join(catalog.package_of(m) for m in absent)
    entry = registry.get(node.type)
    if not node.code:
        return ComponentState.UNKNOWN, "its source is not saved with the flow"
    if entry is None:
        return ComponentState.OK, "not one of the engine's own: its saved source runs"
    try:
        status = _classified(node.body, node.type, registry)
    except (KeyError, TypeError, AttributeError) as error:
        return ComponentState.UNKNOWN, f"it cannot be compared with the installed one: {error!r}"
    if status == "outdated_breaking":
        return ComponentState.OUTDATED_BREAKING, "; ".join(_differences(entry, node.body))
    return ComponentState(status), ""


def _classified(body: Mapping[str, Any], kind: str, registry: Mapping[str, Any]) -> str:
    from lfx.upgrade.checker import check_flow_compatibility  # noqa: PLC0415  loads the engine

    node = {"data": {"id": "", "type": kind, "node": body}}
    report = check_flow_compatibility({"nodes": [node]}, {}, registry=registry)
    return str(report.nodes[0].status) if report.nodes else "ok"


def _stamp(body: dict[str, Any], entry: Mapping[str, Any]) -> None:
    """Put the installed code into one saved component, and the fields that the code reads and the file predates."""
    from lfx.upgrade.checker import new_template_field_keys  # noqa: PLC0415  loads the engine

    installed, saved = entry["template"], body["template"]
    saved["code"]["value"] = installed["code"]["value"]
    for key in new_template_field_keys(installed, saved):
        saved[key] = copy.deepcopy(installed[key])


def _differences(entry: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[str]:
    installed = {output["name"] for output in entry.get("outputs") or ()}
    saved = {output.get("name") for output in body.get("outputs") or ()}
    if gone := sorted(saved - installed - {None, "component_as_tool"}):
        yield f"outputs no longer there: {', '.join(gone)}"
    if new := sorted(installed - saved) if "component_as_tool" not in saved else []:
        yield f"outputs that the file does not have: {', '.join(new)}"
    fields = body.get("template") or {}
    for name, field in (entry.get("template") or {}).items():
        if isinstance(field, Mapping) and field.get("required") and name not in fields:
            yield f"a required field that the file does not have: {name}"


def _type(node: Mapping[str, Any]) -> str:
    return str((node.get("data") or {}).get("type") or "")


def _body(node: Mapping[str, Any]) -> dict[str, Any] | None:
    body = (node.get("data") or {}).get("node")
    template = body.get("template") if isinstance(body, dict) else None
    code = template.get("code") if isinstance(template, dict) else None
    return body if isinstance(code, dict) and code.get("value") else None


@lru_cache(maxsize=1)
def _registry() -> Mapping[str, Any]:
    """The installed core components by type, with the names they had before."""
    from lfx.interface.components import _read_component_index  # noqa: PLC0415  loads the engine
    from lfx.upgrade.checker import build_registry_lookup  # noqa: PLC0415  loads the engine

    index = _read_component_index(None) or {}
    registry: Mapping[str, Any] = build_registry_lookup(dict(index.get("entries") or ()))
    return registry
