"""Use the snapshot of the model providers again.

Why: each model that is made takes one, freezing every provider's description anew, a millisecond.
Safe because: a snapshot cannot be changed, and carries the registry's generation, which advances with every change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target

_MODULE = "lfx.base.models.provider_registry"


def _install(patches: Patches) -> None:
    registry = patches.module(_MODULE)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        kept: list[Any] = [None]

        @functools.wraps(original)
        def get_registry_snapshot(*, validate_catalogs: bool = False) -> Any:
            if patches.off or validate_catalogs:
                return original(validate_catalogs=validate_catalogs)
            snapshot = kept[0]
            if snapshot is None or snapshot.generation != registry._generation:
                snapshot = kept[0] = original()
            return snapshot

        return get_registry_snapshot

    patches.replace(registry, "get_registry_snapshot", make)


PROVIDER_REGISTRY = Accelerator(
    name="provider_registry",
    targets=(
        Target(_MODULE, "get_registry_snapshot", frozenset({"dfdd59a48b6f9176"})),
        Target(_MODULE, "register_provider", frozenset({"c42d6dde0719be4b"})),
        Target(_MODULE, "unregister_provider", frozenset({"2a34a682fe68f3a7"})),
    ),
    install=_install,
)
