"""Extension bundles: packages that bring model providers and components. Only those a flow needs are loaded.

Loading all installed bundles takes 14 s and 300 MB; one takes a fraction of a second. Imports lfx; loaded by
LangflowEngine.prepare only.
"""

from __future__ import annotations

from collections.abc import Iterable

from lfx.extension.loader import load_extension

from runtime.engine import catalog

_loaded: set[str] = set()


def load_providers(names: Iterable[str]) -> None:
    """Load the bundles that bring the given model providers, each once per process."""
    roots = catalog.extension_roots()
    for name in names:
        provider = catalog.installed().provider(name)
        distribution = provider.extension if provider else None
        if distribution and distribution not in _loaded:
            load_extension(roots[distribution], distribution=distribution)
            _loaded.add(distribution)
