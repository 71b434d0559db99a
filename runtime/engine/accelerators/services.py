"""Answer at once that a service is absent.

Why: a headless run has no database, chat cache, tracing or storage service; the engine tries to make each one at every
look-up, and logs an error with its traceback (0.3 to 1 ms).
Safe because: the answer is the same None. It is the whole process's: a route cannot switch it off for itself.
"""

from __future__ import annotations

import functools

from runtime.engine.accelerators.base import Accelerator, Patches, Target

_ABSENT = ("CHAT", "TRACING", "TRANSACTION", "STORAGE", "DATABASE", "CHECKPOINT")


def _install(patches: Patches) -> None:
    manager = patches.module("lfx.services.manager").get_service_manager()
    kinds = patches.module("lfx.services.schema").ServiceType
    for kind in (getattr(kinds, f"{name}_SERVICE") for name in _ABSENT):
        if kind not in manager.services:
            manager.services[kind] = None
            patches.at_undo(functools.partial(manager.services.pop, kind, None))


SERVICES = Accelerator(
    name="services",
    targets=(
        Target("lfx.services.manager", "ServiceManager.get", frozenset({"4bc369ceda25216b"})),
        Target("lfx.services.deps", "get_service", frozenset({"5a5ebb57a1c235ef"})),
    ),
    install=_install,
)
