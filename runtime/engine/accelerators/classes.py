"""Reuse the class that a component's source was compiled to.

Why: the engine parses, checks and compiles the source of every component for every run, 4 to 5 ms a component, and
looks up the text of the file that its class came from.
Safe because: the key is the exact source and class name; only sources that Langflow itself ships are kept, since what a
user's own component leaves on its class or module is not to be told from its text; of these, one that could keep
anything there is refused by the audit; and a class whose attributes are not what they were is not handed out again.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import structlog

from runtime.engine.accelerators.audit import reasons_against
from runtime.engine.accelerators.base import Accelerator, Patches, Target

log = structlog.get_logger("headrace.engine")

MAX_CLASSES = 1024
"""Classes kept; the least recently used goes first, so that a flow edited many times does not fill the memory."""

Key = tuple[str, str | None]
Compile = Callable[..., type]


class ClassCache:
    """Compiled classes by source and name, of the sources in ``known``. Safe for threads."""

    def __init__(self, compile_class: Compile, known: AbstractSet[str], *, size: int = MAX_CLASSES) -> None:
        self._compile = compile_class
        self.known = known
        self._size = size
        self._lock = threading.Lock()
        self._classes: OrderedDict[Key, tuple[type, dict[str, Any]]] = OrderedDict()
        self.refused: OrderedDict[str, list[str]] = OrderedDict()
        """Sources that are compiled anew each time, with the reasons."""

    def get(self, code: str, class_name: str | None = None) -> type:
        """The class of a source; raises what compiling it raises."""
        if code not in self.known:
            return self._compile(code, class_name)
        key = (code, class_name)
        kept = self.kept(key)
        if kept is not None:
            return kept
        made = self._compile(code, class_name)
        if code not in self.refused:
            self._keep(key, made)
        return made

    def kept(self, key: Key) -> type | None:
        """The class that is kept for a source and name, if it is what it was."""
        with self._lock:
            kept = self._classes.get(key)
            if kept is None:
                return None
            self._classes.move_to_end(key)
        made, state = kept
        if _state(made) == state:
            return made
        log.warning("accelerator.class_changed", component=made.__name__)
        self._refuse(key[0], [f"the class {made.__name__} was changed by a run"])
        return None

    def _keep(self, key: Key, made: type) -> None:
        if reasons := _reasons(key[0]):
            self._refuse(key[0], reasons)
            return
        with self._lock:
            self._classes[key] = (made, _state(made))
            while len(self._classes) > self._size:
                self._classes.popitem(last=False)

    def _refuse(self, code: str, reasons: list[str]) -> None:
        with self._lock:
            for key in [key for key in self._classes if key[0] == code]:
                del self._classes[key]
            self.refused[code] = reasons
            while len(self.refused) > self._size:
                self.refused.popitem(last=False)


def _reasons(code: str) -> list[str]:
    try:
        return reasons_against(code)
    except Exception as error:  # noqa: BLE001  it has compiled: a run must not fail for the audit's sake
        return [f"it cannot be audited: {type(error).__name__}"]


def shipped_sources(index: Mapping[str, Any]) -> frozenset[str]:
    """The sources of the engine's own components, from its index."""
    templates = (node.get("template") or {} for _, nodes in index.get("entries") or () for node in nodes.values())
    codes = ((template.get("code") or {}).get("value") for template in templates)
    return frozenset(code for code in codes if isinstance(code, str))


def _state(made: type) -> dict[str, Any]:
    """What a class holds: the identity of each attribute, and the size of those that can grow. Not what is in them."""
    return {
        name: (id(value), len(value) if isinstance(value, list | dict | set) else 0)
        for name, value in vars(made).items()
        if name not in _ENGINES_OWN
    }


_ENGINES_OWN = frozenset({"__abstractmethods__", "_abc_impl", "__doc__"})


class _Installed:
    """The cache that the installed accelerator keeps the classes in."""

    cache: ClassCache | None = None


def kept(key: Key) -> type | None:
    """The class that the accelerator hands out for a source and name to the current run; None where it makes one."""
    return None if _Installed.cache is None else _Installed.cache.kept(key)


def is_shipped(code: str) -> bool:
    """Whether Langflow ships a source, as far as the accelerator knows."""
    return _Installed.cache is not None and code in _Installed.cache.known


def _install(patches: Patches) -> None:
    loading = patches.module("lfx.interface.initialize.loading")
    components = patches.module("lfx.interface.components")

    def make(original: Compile) -> Compile:
        cache = ClassCache(original, shipped_sources(components._read_component_index(None) or {}))
        _Installed.cache = cache
        patches.at_undo(lambda: setattr(_Installed, "cache", None))

        @functools.wraps(original)
        def eval_custom_component_code(code: str, class_name: str | None = None) -> type:
            if patches.off:
                return original(code, class_name)
            return cache.get(code, class_name)

        return eval_custom_component_code

    patches.replace(loading, "eval_custom_component_code", make)
    texts: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()

    def make_text(original: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(original)
        def set_class_code(component: Any) -> None:
            if patches.off or component._code:  # the text it was given is its own, not its class's
                original(component)
            elif (text := texts.get(type(component))) is not None:
                component._code = text
            else:
                original(component)
                texts[type(component)] = component._code

        return set_class_code

    patches.replace(patches.module("lfx.custom.custom_component.component").Component, "set_class_code", make_text)


CLASSES = Accelerator(
    name="classes",
    targets=(
        Target("lfx.custom.eval", "eval_custom_component_code", frozenset({"b01b41675abb4bc1"})),
        Target("lfx.custom.validate", "create_class", frozenset({"fa87ac7e0e24ea77"})),
        Target("lfx.custom.custom_component.component", "Component.set_class_code", frozenset({"76119d26e5dc7ee1"})),
        Target("lfx.interface.initialize.loading", "instantiate_class", frozenset({"62cd63513070f03a"})),
    ),
    install=_install,
)
