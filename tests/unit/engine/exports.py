"""Exports by hand, with just what the engine's checks read; no component here could run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.engine.base import FlowSource
from runtime.engine.catalog import Catalog, Provider, ProviderVariable

SOURCE = "from lfx.custom import Component\n\nclass Thing(Component):\n    pass\n"


class FakeCatalog(Catalog):
    """Knows OpenAI and one extension's provider; ``absent`` is not installed."""

    def __init__(self, *, absent: frozenset[str] = frozenset()) -> None:
        key = ProviderVariable("OPENAI_API_KEY", required=True, secret=True, field="api_key")
        url = ProviderVariable("LOCAL_URL", required=True, secret=False)
        openai = Provider("OpenAI", (key,), module="langchain_openai", package="langchain-openai")
        local = Provider("Local", (url,), key_required=False)
        super().__init__({"OpenAI": openai, "Local": local})
        object.__setattr__(self, "absent", absent)

    def has_module(self, module: str) -> bool:
        return module.partition(".")[0] not in self.absent

    def package_of(self, module: str) -> str:
        return module.partition(".")[0].replace("_", "-")


def field(value: Any = "", **keys: Any) -> dict[str, Any]:
    """A field of a template."""
    return {"type": "str", "show": True, "required": False, "value": value, **keys}


def secret(value: str = "", **keys: Any) -> dict[str, Any]:
    """A field for a key."""
    return field(value, password=True, load_from_db=bool(value), **keys)


def model(provider: str | None = None, **keys: Any) -> dict[str, Any]:
    """A model field, with a model of that provider chosen."""
    return field([{"name": "m", "provider": provider}] if provider else "", type="model", required=True, **keys)


def node(node_id: str, *, code: str = SOURCE, tool: bool = False, outputs: Any = None, **fields: Any) -> dict[str, Any]:
    """A component; its type is the id's first part."""
    kind = node_id.partition("-")[0]
    body = {
        "display_name": kind,
        "template": {"_type": "Component", "code": field(code, type="code"), **fields},
        "outputs": outputs if outputs is not None else [{"name": "out"}],
        "tool_mode": tool,
    }
    return {"id": node_id, "type": "genericNode", "data": {"id": node_id, "type": kind, "node": body}}


def edge(source: str, target: str, to: str) -> dict[str, Any]:
    """A connection to the field ``to``."""
    handles = {"sourceHandle": {"id": source, "name": "out"}, "targetHandle": {"id": target, "fieldName": to}}
    return {"source": source, "target": target, "data": handles}


def export(*nodes: Mapping[str, Any], edges: Any = (), **more: Any) -> dict[str, Any]:
    """A flow's export."""
    return {"name": "Flow", "data": {"nodes": list(nodes), "edges": list(edges)}, **more}


def source(flow: Mapping[str, Any], folder: Path = Path("/nonexistent"), *, route: str = "flow") -> FlowSource:
    """The flow as the registry gives it."""
    return FlowSource(route, "v1", flow, folder / f"{route}.json", folder / f"{route}.files")
