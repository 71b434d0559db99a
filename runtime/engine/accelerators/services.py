"""Answer at once which service there is, or that it is absent.

Why: a headless run has no database, chat cache, tracing or storage service; the engine tries to make each one at every
look-up, and logs an error with its traceback (0.3 to 1 ms). One that is there is looked up behind two locks, 20 to 40
times a run.
Safe because: the answer is the same, None or the service that was made; what is not made yet is left to the engine.
Which ones are absent is the whole process's: a route cannot switch that off for itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target

_UNMADE = object()
_ABSENT = ("CHAT", "TRACING", "TRANSACTION", "STORAGE", "DATABASE", "CHECKPOINT")


def _install(patches: Patches) -> None:
    manager = patches.module("lfx.services.manager").get_service_manager()
    kinds = patches.module("lfx.services.schema").ServiceType
    for kind in (getattr(kinds, f"{name}_SERVICE") for name in _ABSENT):
        if kind not in manager.services:
            manager.services[kind] = None
            patches.at_undo(functools.partial(manager.services.pop, kind, None))

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def get_service(service_type: Any, default: Any = None) -> Any:
            found = _UNMADE if patches.off else manager.services.get(service_type, _UNMADE)
            return original(service_type, default) if found is _UNMADE else found

        return get_service

    patches.replace(patches.module("lfx.services.deps"), "get_service", make)


SERVICES = Accelerator(
    name="services",
    targets=(
        Target("lfx.services.manager", "ServiceManager.get", frozenset({"4bc369ceda25216b"})),
        Target("lfx.services.manager", "get_service_manager", frozenset({"d1ccc91e32ca33dc"})),
        Target("lfx.services.deps", "get_service", frozenset({"5a5ebb57a1c235ef"})),
    ),
    install=_install,
)
