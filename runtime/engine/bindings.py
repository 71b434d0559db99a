"""Key fields that are empty and bound to no variable: they get their provider's standard variable. Pure.

A flow exported without its keys, or run by API without ever being opened in the UI, has such fields; the engine would
ignore OPENAI_API_KEY in the environment and fail, or answer nothing. The standard variable is the one that the
component's own source names as the field's default, else that of the provider whose key the field is called.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from runtime.engine.catalog import Catalog
from runtime.engine.export import Node, raw_nodes

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")

Bindings = Mapping[tuple[str, str], str]
"""The variable by (component id, field)."""


def standard_bindings(data: Mapping[str, Any], catalog: Catalog) -> dict[tuple[str, str], str]:
    """The variables that the empty key fields of a graph's JSON get."""
    return {
        (str(node.get("id")), name): variable
        for node in raw_nodes(data)
        for name, field in _empty_keys(node)
        if (variable := _standard(node, name, field, catalog))
    }


def bind(data: Mapping[str, Any], bindings: Bindings) -> None:
    """Write the bindings into a graph's JSON, as the UI would."""
    for node in raw_nodes(data):
        for name, field in _empty_keys(node):
            if variable := bindings.get((str(node.get("id")), name)):
                field["value"] = variable
                field["load_from_db"] = True


def _empty_keys(node: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    template = (node.get("data") or {}).get("node", {}).get("template") or {}
    for name, field in template.items():
        if isinstance(field, dict) and field.get("password") and field.get("show", True) and not field.get("value"):
            yield name, field


def _standard(node: Mapping[str, Any], name: str, field: Mapping[str, Any], catalog: Catalog) -> str | None:
    template = node["data"]["node"]["template"]
    if any(isinstance(f, Mapping) and f.get("type") == "model" for f in template.values()):
        return None  # the engine asks for the selected provider's own variable there
    code = template.get("code")
    source = code.get("value") if isinstance(code, Mapping) else None
    if isinstance(source, str) and (default := secret_defaults(source).get(name)):
        return default
    called = str(field.get("display_name") or "").removesuffix(" API Key").removesuffix(" Key")
    provider = catalog.provider(called)
    return next((v.name for v in provider.variables if v.secret), None) if provider else None


def variables_of(node: Node, bindings: Bindings, catalog: Catalog) -> frozenset[str]:
    """The variables that a component may read: those its fields are bound to, and those of its model's provider."""
    found = {variable for (owner, _), variable in bindings.items() if owner == node.id}
    for _, field in node.fields:
        value = field.get("value")
        if field.get("load_from_db") and isinstance(value, str):
            found.add(value)
        if field.get("type") == "model":
            found |= variables_of_providers(selected_providers(value), catalog)
    return frozenset(found)


def selected_providers(value: Any) -> frozenset[str]:
    """The providers that the value of a model field names."""
    choices = value if isinstance(value, list) else []
    return frozenset(
        str(choice["provider"]) for choice in choices if isinstance(choice, Mapping) and choice.get("provider")
    )


def variables_of_providers(names: Iterable[str], catalog: Catalog) -> frozenset[str]:
    """The variables that model providers read."""
    providers = (provider for name in names if (provider := catalog.provider(name)))
    return frozenset(variable.name for provider in providers for variable in provider.variables)


@lru_cache(maxsize=512)
def secret_defaults(source: str) -> Mapping[str, str]:
    """The variables that a source names as defaults: ``SecretStrInput(name=..., value="OPENAI_API_KEY")``."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[str, str] = {}
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not ast.unparse(call.func).endswith("SecretStrInput"):
            continue
        given = {k.arg: k.value.value for k in call.keywords if k.arg and isinstance(k.value, ast.Constant)}
        name, value = given.get("name"), given.get("value")
        if isinstance(name, str) and isinstance(value, str) and _VARIABLE.fullmatch(value):
            found[name] = value
    return found
