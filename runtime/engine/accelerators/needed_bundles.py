"""Load the extensions that a flow's components may come from, where only installed components may run.

Why: to know the source of every installed component, the engine imports all installed extensions, for 12 s and 280 MB,
of which one takes two thirds. A flow has components of one of them, or of none.
Safe because: a component is admitted by its type or by its exact source. A type is a class's name, with or without a
final "Component", or a text that stands in that class's file, or an old name that the engine's own tables lead to one
of these; and equal sources name the same classes. An extension in whose files nothing of the kind stands admits none of
a flow's components. Where bundles of one name may hide each other, nothing is put off; nor is what cannot be read.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import structlog

from runtime.engine import catalog
from runtime.engine.accelerators.base import Accelerator, Patches, Target
from runtime.engine.export import Node

log = structlog.get_logger("headrace.engine")

_COMPONENTS = "lfx.interface.components"
_SEEDS = Path("/opt/langflow/bundles")
_CLASS = re.compile(r"\bclass\s+(\w+)")

_asked: ContextVar[Collection[str] | None] = ContextVar("headrace_extensions", default=None)
"""The extensions to load, while there is something to be loaded later; None at the start."""

_put_off: dict[str, Path] = {}
"""The folders of the extensions that are not loaded, by distribution."""

_lock = threading.Lock()


def load_needed(nodes: Iterable[Node], *, every: bool = False) -> None:
    """Load those extensions that were put off and may have one of these components; ``every``: all of them.

    Blocks while they are imported: call it in a thread.
    """
    with _lock:
        if not _put_off:
            return
        names = sorted(_put_off if every else extensions_of(names_of(nodes), _put_off))
        if not names:
            return
        try:
            _load(names)
        except Exception as error:  # noqa: BLE001  as the engine does: what it would have admitted is refused by name
            log.warning("extensions.failed", extensions=names, error=f"{type(error).__name__}: {error}")
        for name in names:
            del _put_off[name]


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
    either = "|".join(re.escape(name) for name in sorted(names))
    found = re.compile(rf"""\bclass\s+(?:{either})(?:Component)?\b|["'](?:{either})["']""")
    return [name for name, root in roots.items() if (text := _text(root)) is None or (names and found.search(text))]


def _last(kind: str) -> str:
    """The class of ``ext:bundle:Class@slot`` and of ``package.module.Class``."""
    return kind.partition("@")[0].rpartition(":")[2].rpartition(".")[2]


@functools.cache
def _renamed() -> Mapping[str, tuple[str, ...]]:
    """What the engine takes a saved type for: an older one's present name."""
    from lfx.extension.migration import load_migration_table  # noqa: PLC0415  the engine's, where it is needed only
    from lfx.utils.component_aliases import LEGACY_TYPE_ALIASES  # noqa: PLC0415  as above

    found = dict[str, tuple[str, ...]]()
    table, _ = load_migration_table()
    for entry in table.entries if table is not None else ():
        found[entry.legacy_value] = (*found.get(entry.legacy_value, ()), entry.target)
    for old, new in LEGACY_TYPE_ALIASES.items():
        found[old] = (*found.get(old, ()), new)
    return found


@functools.cache
def _text(root: Path) -> str | None:
    """The sources of an extension; None where they cannot be read, or have no component."""
    try:
        texts = [path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))]
    except (OSError, ValueError):
        return None
    return "\n".join(texts) if texts else None


def _at_once(roots: Mapping[str, Path], others: Iterable[Path]) -> set[str]:
    """The extensions that are not put off, since whether they are loaded tells what else is.

    ``others`` are the folders in which bundles of the user's lie.
    """
    if (
        os.environ.get("LANGFLOW_SEED_DIR")
        or _SEEDS.is_dir()
        or metadata.entry_points(group="lfx.bundles")
        or _in_work()
    ):
        return set(roots)
    bundles = {name: _bundles(root) for name, root in roots.items()}
    taken = Counter(bundle for found in bundles.values() for bundle in set(found or ()))
    taken.update(folder.name for path in others for folder in path.iterdir())
    return {name for name, found in bundles.items() if found is None or any(taken[bundle] > 1 for bundle in found)}


def _in_work() -> bool:
    """Whether extensions are being developed here, which the engine loads beside the installed ones."""
    from lfx.extension.dev_registry import list_dev_extensions  # noqa: PLC0415  as above

    return bool(list_dev_extensions())


def _bundles(root: Path) -> list[str] | None:
    """The names of an extension's bundles; None where they are not simply written down."""
    try:
        manifest = json.loads((root / "extension.json").read_text(encoding="utf-8"))
        return [str(bundle["name"]) for bundle in manifest.get("bundles", ())]
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return None


def _load(names: Collection[str]) -> None:
    """Import extensions as the engine does at its start, and add their components to those it knows."""
    components = sys.modules[_COMPONENTS]
    nothing_else = SimpleNamespace(settings=SimpleNamespace(components_path=[]))
    token = _asked.set(names)
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

    patches.at_import(_COMPONENTS, put)
    patches.at_undo(_put_off.clear)


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
            names = _at_once(roots, components._components_path_extension_paths(service))
            _put_off.update((name, root) for name, root in roots.items() if name not in names)
        return original([metadata.distribution(name) for name in names])

    return load_installed_extensions


NEEDED_BUNDLES = Accelerator(
    name="needed_bundles",
    targets=(
        Target(_COMPONENTS, "import_extension_components", frozenset({"dc245ce4cdd5f0ae"})),
        Target(_COMPONENTS, "_initialize_component_cache", frozenset({"5844ae08b94ed427"})),
        Target(_COMPONENTS, "_collect_component_cache_lookups", frozenset({"c183c32c8a2a7153"})),
        Target(_COMPONENTS, "_merge_component_sources", frozenset({"f66e1ee2cc7c3578"})),
        Target(_COMPONENTS, "_decorate_template_with_extension", frozenset({"d21fe4786322b505"})),
        Target("lfx.extension.loader._startup", "load_installed_extensions", frozenset({"0197b0e1ca528e91"})),
        Target("lfx.utils.component_aliases", "get_component_type_aliases", frozenset({"45a27accee86759a"})),
        Target("lfx.utils.component_aliases", "_component_alias_tiers", frozenset({"fc625e2bf8673dbb"})),
        Target("lfx.utils.flow_validation", "collect_component_hash_lookups", frozenset({"dcf25f1e8a1c9690"})),
        Target("lfx.utils.flow_validation", "ensure_component_hash_lookups_loaded", frozenset({"b9c0cb03d6675894"})),
    ),
    install=_install,
)
