"""Extension bundles: packages that bring model providers and components. Only those a flow needs are loaded.

Loading all installed bundles takes 14 s and 300 MB; one takes a fraction of a second. Imports lfx; loaded by
LangflowEngine.prepare only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from lfx.extension.loader import load_extension

from runtime.engine import catalog
from runtime.errors import FlowUnready

_loaded: set[str] = set()
_lock = threading.Lock()


def load_providers(names: Iterable[str]) -> None:
    """Load the bundles that bring the given model providers, each once per process. Raises FlowUnready."""
    roots = catalog.extension_roots()
    for name in names:
        provider = catalog.installed().provider(name)
        distribution = provider.extension if provider else None
        if not distribution:
            continue
        with _lock:
            if distribution in _loaded:
                continue
            result = load_extension(roots[distribution], distribution=distribution)
            if result.errors:
                told = "; ".join(str(getattr(error, "message", error)) for error in result.errors)
                raise FlowUnready(needs=(f"mend or reinstall {distribution}, which brings {name!r}: {told}",))
            _loaded.add(distribution)
