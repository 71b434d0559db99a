"""What is installed here: packages, and the model providers with their variables. Loads Langflow only when asked.

Provider facts come from the engine's own tables (``lfx.base.models``) and from the ``extension.json`` of the installed
extension bundles, which are read without being loaded: loading all of them takes 14 s.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

KEYLESS = frozenset({"Ollama"})
"""Core providers that run without a key and without an address: the engine assumes the local default."""

_MANIFESTS = ("extension.json", "pyproject.toml")
_EXTENSIONS = "langflow.extensions"
"""Where the engine looks for an extension: a file with such a name, or an entry point of this group."""


@dataclass(frozen=True, slots=True)
class ProviderVariable:
    """One variable of a provider. ``field`` is the component field that stands in for it, where there is one."""

    name: str
    required: bool
    secret: bool
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Provider:
    """A model provider. ``module`` is what its client is imported from, ``package`` what pip calls it."""

    name: str
    variables: tuple[ProviderVariable, ...] = ()
    key_required: bool = True
    module: str | None = None
    package: str | None = None
    extension: str | None = None
    """The distribution whose extension bundle brings the provider; None for the engine's own."""

    @property
    def key(self) -> str | None:
        """The variable of the key that calls need."""
        return next((v.name for v in self.variables if v.secret and v.required), None) if self.key_required else None

    @property
    def own_server(self) -> str | None:
        """The variable that names a server of the user's own, which may want no key (OPENAI_BASE_URL)."""
        return next((v.name for v in self.variables if v.name.endswith("_BASE_URL") and not v.required), None)


@dataclass(frozen=True)
class Catalog:
    """What is installed. Tests make their own; ``installed()`` is this machine's."""

    providers: Mapping[str, Provider] = field(default_factory=dict)

    def provider(self, name: str) -> Provider | None:
        """The provider of that name, if the engine or an installed extension knows it."""
        return self.providers.get(name)

    def has_module(self, module: str) -> bool:
        """Whether the top-level package of ``module`` can be found. Imports nothing."""
        try:
            return find_spec(module.partition(".")[0]) is not None
        except (ImportError, ValueError, AttributeError):
            return False

    def package_of(self, module: str) -> str:
        """What to give to ``pip install`` for a module that is not installed: a good guess."""
        from lfx.utils.flow_requirements import _import_to_package  # noqa: PLC0415  light, but the engine's

        return str(_import_to_package(module.partition(".")[0]))


@lru_cache(maxsize=1)
def installed() -> Catalog:
    """Read this machine's catalog, once. Imports the engine's model tables: seconds, where nothing else has."""
    from lfx.base.models.model_metadata import MODEL_PROVIDER_METADATA  # noqa: PLC0415  seconds, where it is first
    from lfx.base.models.unified_models.class_registry import _MODEL_CLASS_IMPORTS  # noqa: PLC0415  as above

    providers = {
        name: _provider(name, meta, _class_import(meta, _MODEL_CLASS_IMPORTS), name not in KEYLESS)
        for name, meta in MODEL_PROVIDER_METADATA.items()
    }
    for distribution, root in extension_roots().items():
        providers.update((p.name, p) for p in _extension_providers(distribution, root))
    return Catalog(providers)


@lru_cache(maxsize=1)
def extension_roots() -> Mapping[str, Path]:
    """The folder of each installed extension bundle, by distribution. Looks through all distributions, once."""
    from lfx.extension.loader import installed_extension_roots  # noqa: PLC0415  loads the engine

    return {str(name): Path(root) for name, root in installed_extension_roots(_may_bring_extensions()).items()}


def extension_distributions(names: Collection[str]) -> list[Distribution]:
    """The distributions of these names, of ``extension_roots``; one that is installed twice, twice."""
    return [found for found in _may_bring_extensions() if canonicalize_name(found.metadata["Name"]) in names]


@lru_cache(maxsize=1)
def _may_bring_extensions() -> tuple[Distribution, ...]:
    return tuple(filter(_may_bring_extension, distributions()))


def _may_bring_extension(distribution: Distribution) -> bool:
    """Whether to let the engine look closer, which takes the whole list of a package's files apart: 1 s for all."""
    if distribution.read_text("direct_url.json"):
        return True  # installed from a folder, which may hold more than the list tells
    record, points = distribution.read_text("RECORD"), distribution.read_text("entry_points.txt")
    return record is None or any(name in record for name in _MANIFESTS) or _EXTENSIONS in (points or "")


def _provider(
    name: str, meta: Mapping[str, Any], source: tuple[str, str] | None, key_required: bool, extension: str | None = None
) -> Provider:
    variables = tuple(
        ProviderVariable(
            name=str(variable["variable_key"]),
            required=bool(variable.get("required")) and name not in KEYLESS,
            secret=bool(variable.get("is_secret")),
            field=(variable.get("component_metadata") or {}).get("mapping_field"),
        )
        for variable in meta.get("variables", ())
        if variable.get("variable_key")
    )
    module, package = source or (None, None)
    return Provider(name, variables, key_required, module, package, extension)


def _class_import(meta: Mapping[str, Any], imports: Mapping[str, Any]) -> tuple[str, str] | None:
    found = imports.get(str((meta.get("mapping") or {}).get("model_class")))
    if found is None:
        return None
    module, _, hint = found
    package = hint or module.partition(".")[0].replace("_", "-")
    # A module of the engine's own wraps the provider's package, which the hint names.
    return (package.replace("-", "_") if module.startswith("lfx.") else module, package)


def _extension_providers(distribution: str, root: Path) -> Iterable[Provider]:
    try:
        manifest = json.loads((root / "extension.json").read_text(encoding="utf-8"))
        described = manifest.get("providers") or ()
    except (OSError, ValueError, AttributeError):
        return
    for entry in described:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            continue
        module = (entry.get("model_class") or {}).get("module")
        source = (str(module), str(module).partition(".")[0].replace("_", "-")) if module else None
        key = entry.get("api_key_required", True) is not False
        yield _provider(entry["name"], entry.get("metadata") or {}, source, key, distribution)
