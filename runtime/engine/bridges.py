"""What the engine's safe upgrade does not know about older components, so that it can be applied to them. Pure.

An Agent saved by 1.2 to 1.7 names its model in two drop-downs, ``agent_llm`` (the provider) and ``model_name``, or has
one connected to ``agent_llm``. Its saved code does not run on 1.13 ("Attribute model not found"). The installed Agent
reads one field, ``model``, has one more output, and is otherwise fed by the fields that the file has.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

_AGENT_LLM = "agent_llm"
_CONNECTED = "connect_other_models"


def bridged(kind: str, body: Mapping[str, Any], entry: Mapping[str, Any], *, connected: bool) -> dict[str, Any]:
    """A copy of a saved component; an old Agent gets the installed one's ``model`` field and outputs.

    ``body`` is what stands under ``data.node``, ``entry`` the installed component; ``connected`` says whether an edge
    feeds ``agent_llm``.
    """
    new = copy.deepcopy(dict(body))
    template = new["template"]
    field = (entry.get("template") or {}).get("model")
    if kind != "Agent" or "model" in template or _AGENT_LLM not in template or not isinstance(field, Mapping):
        return new
    if value := _CONNECTED if connected else _selection(template):
        template["model"] = {**copy.deepcopy(dict(field)), "value": value}
        new["outputs"] = _outputs(entry.get("outputs") or [], new.get("outputs") or [])
    return new


def model_edges(edges: Iterable[Any], node_id: str) -> list[dict[str, Any]]:
    """The edges that feed an old Agent's ``agent_llm``."""
    return [edge for edge in edges if isinstance(edge, dict) and _feeds(edge, node_id)]


def repoint(edge: dict[str, Any]) -> None:
    """Let an edge that fed ``agent_llm`` feed ``model``."""
    edge["data"]["targetHandle"].update(fieldName="model", inputTypes=["LanguageModel"], type="model")


def _feeds(edge: Mapping[str, Any], node_id: str) -> bool:
    handle = (edge.get("data") or {}).get("targetHandle")
    return edge.get("target") == node_id and isinstance(handle, dict) and handle.get("fieldName") == _AGENT_LLM


def _selection(template: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    provider = (template.get(_AGENT_LLM) or {}).get("value")
    model = (template.get("model_name") or {}).get("value")
    if not isinstance(provider, str) or not provider or provider == "Custom" or not isinstance(model, str) or not model:
        return None
    return [{"name": model, "provider": provider, "metadata": {}}]


def _outputs(installed: list[dict[str, Any]], saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The saved outputs, with those that only the installed component has. A tool's single output stays."""
    names = {output.get("name") for output in saved}
    if "component_as_tool" in names:
        return saved
    return [*saved, *(copy.deepcopy(output) for output in installed if output["name"] not in names)]
