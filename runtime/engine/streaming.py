"""Whether models stream. Pure.

A streaming model hands on an iterator in place of its text. Only a Chat Output reads it to its end: any other component
would get an empty text. So a model streams only if the run is watched and everything it feeds is a Chat Output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.engine.export import raw_nodes


def set_streaming(data: Mapping[str, Any], *, wanted: bool) -> None:
    """Set the ``stream`` field of every model in a graph's JSON."""
    kinds = {str(node.get("id")): str((node.get("data") or {}).get("type")) for node in raw_nodes(data)}
    fed: dict[str, set[str]] = {}
    for edge in data.get("edges") or ():
        fed.setdefault(str(edge.get("source")), set()).add(kinds.get(str(edge.get("target")), ""))
    for node in raw_nodes(data):
        field = ((node.get("data") or {}).get("node", {}).get("template") or {}).get("stream")
        if isinstance(field, dict) and field.get("type") == "bool":
            field["value"] = wanted and fed.get(str(node.get("id"))) == {"ChatOutput"}
