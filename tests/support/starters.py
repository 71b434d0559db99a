"""The starter projects of the installed Langflow, as files and with their models set."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from runtime.engine.base import FlowSource
from shared_models.names import slug

PROVIDER = "OpenAI Compatible"
INPUT = "What is the tallest mountain of Wales?"


@cache
def starters() -> Mapping[str, Path]:
    """Every starter's file by its route's name. Empty where Langflow is not installed."""
    spec = importlib.util.find_spec("langflow")
    if spec is None or not spec.submodule_search_locations:
        return {}
    folder = Path(next(iter(spec.submodule_search_locations))) / "initial_setup" / "starter_projects"
    return {slug(path.stem): path for path in sorted(folder.glob("*.json"))}


def export_of(route: str) -> dict[str, Any]:
    """A starter as it is shipped."""
    export: dict[str, Any] = json.loads(starters()[route].read_text(encoding="utf-8"))
    return export


def starter_source(route: str, export: Mapping[str, Any] | None = None, *, folder: Path | None = None) -> FlowSource:
    """A starter as the registry gives it; its files lie in ``folder``."""
    path = (folder or Path("/nonexistent")) / f"{route}.json"
    return FlowSource(route, "0" * 64, export or export_of(route), path, path.with_suffix(".files"))


def with_models(export: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    """The flow with the model of that name chosen in every model field, as the UI writes it."""
    chosen = copy.deepcopy(dict(export))
    for node in chosen["data"]["nodes"]:
        for field in node["data"].get("node", {}).get("template", {}).values():
            if isinstance(field, dict) and field.get("type") == "model":
                field["value"] = [selection(name, embedding=field.get("model_type") == "embedding")]
    return chosen


def selection(name: str, *, embedding: bool = False) -> dict[str, Any]:
    """What the UI stores for a chosen model."""
    parameters = {"model_name_param": "model", "api_key_param": "api_key", "base_url_param": "base_url"}
    model_class = {"embedding_class": "OpenAIEmbeddings"} if embedding else {"model_class": "ChatOpenAI"}
    return {"name": name, "provider": PROVIDER, "icon": "Plug", "metadata": {**parameters, **model_class}}
