"""Load the extensions that a flow's components may come from, where only installed components may run.

Why: to know the source of every installed component, the engine imports all installed extensions, for 12 s and 280 MB,
of which one takes two thirds. A flow has components of few of them, most have of none.
Safe because: a component is admitted by its type or by its exact source. In the extensions that are known here, a type
is a class's name, with or without a final "Component", or a text that stands in that class's file, or an old name that
the engine's own tables lead to one of these; and equal sources name the same classes. An extension in whose files
nothing of the kind stands admits none of a flow's components. Nothing is put off where anything else is installed or
staged that might hide an extension's components, share their names or claim the same integration.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import structlog

from runtime.engine import catalog
from runtime.engine.accelerators.base import OFF, Accelerator, Patches, Target
from runtime.engine.base import FlowSource
from runtime.engine.export import Node, read_export

log = structlog.get_logger("headrace.engine")

NAME = "needed_bundles"

KNOWN: Mapping[str, frozenset[str]] = {
    "lfx-amazon": frozenset({"fc7f14d13f2bc6ba"}),
    "lfx-anthropic": frozenset({"61b8a082dde231e3"}),
    "lfx-azure": frozenset({"fdbd81c05b1bee6a"}),
    "lfx-cohere": frozenset({"6dc009a600998733"}),
    "lfx-datastax": frozenset({"87e89862a9941e7e"}),
    "lfx-docling": frozenset({"367b940500e9ad1a"}),
    "lfx-google": frozenset({"54ed2e7a41b9c9fc"}),
    "lfx-ibm": frozenset({"2b2e147d55800ef5"}),
    "lfx-microsoft": frozenset({"8130eb49ad70f012"}),
    "lfx-ollama": frozenset({"53c95e0f4be230bd"}),
    "lfx-openai": frozenset({"efe52dbf57b3631a"}),
    "lfx-openai-compatible": frozenset({"68d9d19b1ce1e9a2"}),
    "lfx-oracle": frozenset({"8b0fe5f4efb9368b"}),
    "lfx-slack": frozenset({"62119dc9e07aa4e8"}),
    "lfx-toolguard": frozenset({"bb58d05c5d229498"}),
    "lfx-vllm": frozenset({"d1162831a824d00f"}),
}
"""The texts of extensions that were read, by distribution: what ``text_of`` gives."""

_COMPONENTS = "lfx.interface.components"
_VALIDATION = "lfx.utils.flow_validation"
_ALIASES = "lfx.utils.component_aliases"
_CLASS = re.compile(r"\bclass\s+(\w+)")

_asked: ContextVar[Collection[str] | None] = ContextVar("headrace_extensions", default=None)
"""The distributions that the engine is to load now; None at its start, which loads all that is not put off."""

_put_off: dict[str, Path] = {}
"""The folders of the extensions that are not loaded, by distribution."""

_lock = threading.Lock()


def load_needed(sources: Iterable[FlowSource], *, every: bool = False) -> None:
    """Load those extensions that were put off and may have a component of these flows; ``every``: all of them.

    Blocks while they are imported: call it in a thread. One that fails stays put off, to be tried with the next flow.
    """
    with _lock:
        if not _put_off:
            return
        nodes = [node for source in sources for node in read_export(source.export, route=source.route).nodes]
        for name in sorted(_put_off if every else extensions_of(names_of(nodes), _put_off)):
            try:
                _load(name)
            except Exception as error:  # noqa: BLE001  whatever its code raises: a flow that needs it is refused by name
                log.warning("extension.failed", extension=name, error=f"{type(error).__name__}: {error}")
            else:
                del _put_off[name]


async def load_needed_by_run(source: FlowSource) -> None:
    """The same for a flow that a run calls, and that may not have been there when the run's own was loaded."""
    if _put_off:
        await asyncio.to_thread(load_needed, [source], every=NAME in OFF.get())


def names_of(nodes: Iterable[Node]) -> frozenset[str]:
    """By what these components may be known: their types, what these were called or are called now, their classes."""
    nodes = list(nodes)
    types = {node.type for node in nodes}
    types.update(new for kind in types.copy() for new in _renamed().get(kind, ()))
    found = {part for kind in types for part in (kind, _last(kind))}
    for node in nodes:
        found.update(_CLASS.findall(node.code))
    return frozenset(name for name in found if name)


def extensions_of(names: Collection[str], roots: Mapping[str, Path]) -> list[str]:
    """The extensions, by distribution, in whose files one of ``names`` stands as a class or a text. Imports nothing."""
    return [name for name, root in roots.items() if _stands_in(names, _sources(root))]


def _stands_in(names: Collection[str], text: str) -> bool:
    likely = [re.escape(name) for name in names if name in text]  # all at once take ten times as long
    if not likely:
        return False
    either = "|".join(likely)
    return re.search(rf"""\bclass\s+(?:{either})(?:Component)?\b|["'](?:{either})["']""", text) is not None


def text_of(root: Path) -> str:
    """The first 16 hex digits of the SHA-256 of an extension's sources and manifest."""
    return hashlib.sha256(_sources(root).encode()).hexdigest()[:16]


def to_put_off(roots: Mapping[str, Path], others: Iterable[Path]) -> dict[str, Path]:
    """The extensions that need not be loaded at the start. ``others`` are the folders of the user's own bundles.

    Of two bundles of one name the engine takes one, so an extension is loaded whose bundle the user has too.
    """
    if reason := _hindrance(roots):
        log.info("extensions.all_loaded", reason=reason)
        return {}
    try:
        taken = {folder.name for path in others for folder in path.iterdir()}
    except OSError as error:
        log.info("extensions.all_loaded", reason=f"{error.filename} cannot be read")
        return {}
    return {name: root for name, root in roots.items() if not taken.intersection(_bundles(root))}


def _hindrance(roots: Mapping[str, Path]) -> str | None:
    """Why nothing is put off; None if there is no reason."""
    from lfx.extension.dev_registry import list_dev_extensions  # noqa: PLC0415  the engine's, where they are needed only
    from lfx.extension.discovery import DEFAULT_SEED_DIR, SEED_DIR_ENV_VAR  # noqa: PLC0415  as above
    from lfx.services.deps import get_catalog_policy_service  # noqa: PLC0415  as above

    for name, root in roots.items():
        if text_of(root) not in KNOWN.get(name, ()):
            return f"{name} is not an extension that is known here (its text is {text_of(root)})"
    if os.environ.get(SEED_DIR_ENV_VAR) or DEFAULT_SEED_DIR.is_dir():
        return "extensions are staged in a folder"
    if metadata.entry_points(group="lfx.bundles"):
        return "a package brings extensions without manifests"
    if list_dev_extensions():
        return "an extension is in development here"
    if get_catalog_policy_service().snapshot.blocked_component_keys:
        return "a policy blocks components"
    return None


def _last(kind: str) -> str:
    """The class of ``ext:bundle:Class@slot`` and of ``package.module.Class``."""
    return kind.partition("@")[0].rpartition(":")[2].rpartition(".")[2]


@functools.cache
def _renamed() -> Mapping[str, tuple[str, ...]]:
    """What the engine takes a saved type for: an older one's present name."""
    from lfx.extension.migration import load_migration_table  # noqa: PLC0415  as above
    from lfx.utils.component_aliases import LEGACY_TYPE_ALIASES  # noqa: PLC0415  as above

    found = dict[str, tuple[str, ...]]()
    table, _ = load_migration_table()
    for entry in table.entries if table is not None else ():
        found[entry.legacy_value] = (*found.get(entry.legacy_value, ()), entry.target)
    for old, new in LEGACY_TYPE_ALIASES.items():
        found[old] = (*found.get(old, ()), new)
    return found


@functools.cache
def _sources(root: Path) -> str:
    """An extension's sources and its manifest; nothing where they cannot be read."""
    try:
        texts = [path.read_text(encoding="utf-8") for path in (root / "extension.json", *sorted(root.rglob("*.py")))]
    except (OSError, ValueError):
        return ""
    return "\n".join(texts)


def _bundles(root: Path) -> set[str]:
    manifest = json.loads((root / "extension.json").read_text(encoding="utf-8"))
    return {bundle["name"] for bundle in manifest.get("bundles", ())}


def _load(name: str) -> None:
    """Import an extension as the engine does at its start, and add its components to those that it knows."""
    components = sys.modules[_COMPONENTS]
    nothing_else = SimpleNamespace(settings=SimpleNamespace(components_path=[]))
    token = _asked.set([name])
    try:
        found = asyncio.run(components.import_extension_components(nothing_else))
    finally:
        _asked.reset(token)
    kept = components.component_cache
    with kept.state_lock:
        merged = components._merge_component_sources(kept.all_types_dict, None, found)
        # All at once: a run that asks in between sees what was known before, or all of it.
        hashes, every_hash, by_hash, by_type, identities = components._collect_component_cache_lookups(merged)
        kept.all_types_dict = merged
        kept.type_to_current_hash, kept.all_known_hashes = hashes, every_hash
        kept.code_by_hash, kept.type_to_code, kept.component_identity_index = by_hash, by_type, identities


def _install(patches: Patches) -> None:
    def put(components: ModuleType) -> None:
        patches.replace(components, "load_installed_extensions", functools.partial(_make, components))
        for name in ("load_seed_extensions", "load_lfx_bundles_extensions", "load_dev_extensions"):
            patches.replace(components, name, _make_other)

    patches.at_import(_COMPONENTS, put)
    patches.at_undo(_forget)


def _make(components: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    from lfx.services.deps import get_settings_service  # noqa: PLC0415  as above

    @functools.wraps(original)
    def load_installed_extensions(distributions: Iterable[metadata.Distribution] | None = None) -> Any:
        service = get_settings_service()
        if distributions is not None or service.settings.allow_custom_components:
            return original(distributions)
        names = _asked.get()
        if names is None:
            roots = catalog.extension_roots()
            _put_off.update(to_put_off(roots, components._components_path_extension_paths(service)))
            names = roots.keys() - _put_off.keys()
        return original(catalog.extension_distributions(names))

    return load_installed_extensions


def _make_other(original: Callable[..., Any]) -> Callable[..., Any]:
    """What brings extensions from elsewhere is looked at when the engine starts, and not again."""

    @functools.wraps(original)
    def load(*args: Any, **keywords: Any) -> Any:
        return original(*args, **keywords) if _asked.get() is None else []

    return load


def _forget() -> None:
    """Let the next engine of the process, which may have this switched off, look for all components anew."""
    if not _put_off:
        return
    _put_off.clear()
    kept = sys.modules[_COMPONENTS].component_cache
    with kept.state_lock:
        kept.all_types_dict, kept.all_types_ready = None, False


NEEDED_BUNDLES = Accelerator(
    name=NAME,
    targets=(
        Target(_COMPONENTS, "import_extension_components", frozenset({"dc245ce4cdd5f0ae"})),
        Target(_COMPONENTS, "_initialize_component_cache", frozenset({"5844ae08b94ed427"})),
        Target(_COMPONENTS, "_collect_component_cache_lookups", frozenset({"c183c32c8a2a7153"})),
        Target(_COMPONENTS, "_merge_component_sources", frozenset({"f66e1ee2cc7c3578"})),
        Target(_COMPONENTS, "_decorate_template_with_extension", frozenset({"d21fe4786322b505"})),
        Target(_COMPONENTS, "_components_path_extension_paths", frozenset({"f351a7e9f9bead36"})),
        Target(_COMPONENTS, "_resolve_bundle_shadowing", frozenset({"34f01b451a67c84d"})),
        Target(_COMPONENTS, "get_and_cache_all_types_dict", frozenset({"11571527437237dc"})),
        Target(_COMPONENTS, "ComponentCache", frozenset({"c4d0c594ff54c53b"})),
        Target("lfx.extension.loader._startup", "load_installed_extensions", frozenset({"0197b0e1ca528e91"})),
        Target("lfx.extension.loader._startup", "load_seed_extensions", frozenset({"fa2c8b6635f6b05d"})),
        Target("lfx.extension.loader._bundles_root", "load_lfx_bundles_extensions", frozenset({"34e141067372b8f8"})),
        Target("lfx.extension.loader._plugins", "_resolve_distribution_roots", frozenset({"3273986b37644fa2"})),
        Target("lfx.extension.loader._orchestrator", "load_extension_bundles", frozenset({"1d0585039a6c3944"})),
        Target("lfx.extension.loader._orchestrator", "_load_bundle_directory", frozenset({"6a3e40a3eb338fb1"})),
        Target("lfx.extension.migration.rewrite", "_rewrite_one_node", frozenset({"0456bba704947c12"})),
        Target("lfx.extension.migration.rewrite", "_resolve_legacy_reference", frozenset({"6ba370db49b094f5"})),
        Target(_ALIASES, "get_component_type_aliases", frozenset({"45a27accee86759a"})),
        Target(_ALIASES, "_component_alias_tiers", frozenset({"fc625e2bf8673dbb"})),
        Target(_ALIASES, "_component_identity_index_alias_tiers", frozenset({"ac566ede4ff88487"})),
        Target(_ALIASES, "build_component_identity_index", frozenset({"2d8a96b776d13403"})),
        Target(_VALIDATION, "ensure_component_hash_lookups_loaded", frozenset({"b9c0cb03d6675894"})),
        Target(_VALIDATION, "collect_component_hash_lookups", frozenset({"dcf25f1e8a1c9690"})),
        Target(_VALIDATION, "collect_component_code_lookups", frozenset({"9204fbe2190a29a4"})),
        Target(_VALIDATION, "collect_code_by_hash", frozenset({"6f9bc0aa104cfef7"})),
        Target(_VALIDATION, "get_trusted_code_for_validation", frozenset({"a94cbe91dfbee70e"})),
        Target(_VALIDATION, "SubstitutableComponentTypes", frozenset({"fa0d8520fe8452ea"})),
        Target(_VALIDATION, "_get_invalid_components", frozenset({"0ac193cf05160187"})),
        Target(_VALIDATION, "check_flow_and_raise", frozenset({"0dbfa92d14337538"})),
    ),
    install=_install,
)
