"""Make a component's cache without a link that refers to itself.

Why: the engine gives each component two caches with a time to live, and uses neither in a run. The entries of such a
cache are a ring, which is there when there are none: an object that only the garbage collector frees.
Safe because: the cache is cachetools' own, of a class under it; its ring is made when it is first asked for. Pickled or
deeply copied it is one of cachetools' class itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target

_MODULES = ("lfx.custom.custom_component.custom_component", "lfx.custom.custom_component.base_component")
_RING = "_TTLCache__root"


def _install(patches: Patches) -> None:
    cache: Any = patches.module("cachetools").TTLCache
    link: Callable[[], Any] = cache._Link

    class TTLCache(cache):  # type: ignore[misc]  # looked up where the accelerator is installed
        """One whose ring is made when it is used."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            ring = self.__dict__.pop(_RING)
            del ring.prev, ring.next

        def __getattr__(self, name: str) -> Any:
            if name != _RING:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            ring = link()
            ring.prev = ring.next = ring
            return self.__dict__.setdefault(_RING, ring)  # another thread's, if that was first

        def __reduce_ex__(self, protocol: Any) -> Any:
            getattr(self, _RING)
            return object.__new__, (cache,), self.__dict__

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def ttl_cache(*arguments: Any, **options: Any) -> Any:
            return (original if patches.off else TTLCache)(*arguments, **options)

        return ttl_cache

    for module in _MODULES:
        patches.replace(patches.module(module), "TTLCache", make)


COMPONENT_CACHES = Accelerator(
    name="component_caches",
    targets=(
        Target("cachetools", "TTLCache", frozenset({"9113dd16f712def0"})),
        Target(_MODULES[0], "CustomComponent.__init__", frozenset({"f696ba20d50b3c88"})),
        Target(_MODULES[1], "BaseComponent.__init__", frozenset({"e647e25db25bb315"})),
    ),
    install=_install,
)
