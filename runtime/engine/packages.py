"""Which packages flows need beside the engine, with the versions that are installed here.

Reads the components' sources and the models that are chosen; loads no flow.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from runtime.engine.base import FlowSource
from runtime.engine.catalog import Catalog
from runtime.engine.export import Node, read_export
from runtime.engine.imports import imports_of

ENGINE = "lfx"

_CHOSEN_BY_NAME = frozenset({"agent_llm", "model_provider", "provider"})
"""Fields of older exports that hold a provider's name as text."""


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution. ``version``: the one that is installed here, None where it is not; ``routes`` need it."""

    name: str
    version: str | None
    routes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """Its line in a requirements file."""
        return self.name if self.version is None else f"{self.name}=={self.version}"


def packages_of(sources: Iterable[FlowSource], catalog: Catalog) -> list[Package]:
    """The engine, and what the flows need that it does not bring along; by name. Imports the engine's tables."""
    brought = _brought_along()
    needed: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        for node in read_export(source.export, route=source.route).nodes:
            for name in _of_node(node, catalog):
                if _plain(name) not in brought:
                    needed[_plain(name)].add(source.route)
    found = [Package(name, _version(name), tuple(sorted(routes))) for name, routes in sorted(needed.items())]
    return [Package(ENGINE, _version(ENGINE)), *found]


def _of_node(node: Node, catalog: Catalog) -> Iterator[str]:
    imports = imports_of(node.code)
    for module in imports.needed | imports.optional:
        yield catalog.package_of(module)
    for chosen in _providers(node):
        provider = catalog.provider(chosen)
        if provider is not None:
            yield from (name for name in (provider.package, provider.extension) if name is not None)


def _providers(node: Node) -> Iterator[str]:
    for name, field in node.fields:
        value = field.get("value")
        if field.get("type") == "model" and isinstance(value, list):
            yield from (
                str(choice["provider"]) for choice in value if isinstance(choice, dict) and "provider" in choice
            )
        elif name in _CHOSEN_BY_NAME and isinstance(value, str):
            yield value


def _brought_along() -> frozenset[str]:
    """What is installed with the engine."""
    seen: set[str] = set()
    left = [ENGINE]
    while left:
        name = _plain(left.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            seen.discard(name)  # asked for elsewhere only: by another platform, or another Python
            continue
        left += [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in requires if "extra ==" not in line]
    return frozenset(seen)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plain(name: str) -> str:
    """A distribution's name as all tools compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
