"""Keep the nodes of an agent's graph from referring to themselves.

Why: a node is given a method of its own to call, and keeps it: an object that has itself. An agent makes a dozen of
them for each run, and the one with its tools keeps the whole graph of the flow until the garbage collector finds it
(see ``remains``). What writes a node's result is a function that calls itself for the results in a list.
Safe because: the function is kept without its object, and bound to it again whenever it is asked for; the methods are
equal then, not one and the same. What is no method of the node's own is kept as it is. A shallow copy of a node has
the original's method as long as that lives, and then its own; neither langgraph nor LangChain copies one. The function
that writes calls itself by way of a weak reference, which lives as long as the function can be called.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target

_MODULE = "langgraph._internal._runnable"
_STATE = "langgraph.graph.state"


class _Own:
    """A method of the object's own, without the object."""

    __slots__ = ("function", "owner")

    def __init__(self, function: Callable[..., Any], owner: Any) -> None:
        self.function = function
        self.owner = weakref.ref(owner)

    def bound(self, asked: Any) -> MethodType:
        """The method, of the object that is ``asked``, or that this was copied from."""
        owner = self.owner()
        return MethodType(self.function, asked if owner is None else owner)

    def __reduce__(self) -> Any:
        owner = self.owner()
        if owner is None:
            raise TypeError(f"cannot copy {self.function.__qualname__}: the object whose method it is has gone")
        return MethodType(self.function, owner).__reduce__()


class _Kept:
    """An attribute in which a method of the object's own is kept without the object."""

    def __init__(self, name: str, is_off: Callable[[], bool]) -> None:
        self._name = name
        self._is_off = is_off

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        if owner is None:
            return self
        try:
            value = owner.__dict__[self._name]
        except (AttributeError, KeyError):
            raise AttributeError(self._name) from None
        return value.bound(owner) if type(value) is _Own else value

    def __set__(self, owner: Any, value: Any) -> None:
        own = type(value) is MethodType and value.__self__ is owner and not self._is_off()
        owner.__dict__[self._name] = _Own(value.__func__, owner) if own else value

    def __delete__(self, owner: Any) -> None:
        del owner.__dict__[self._name]


def _install(patches: Patches) -> None:
    undone: list[bool] = []
    # It stays when the rest is undone, for the nodes that are there, and keeps what it is given.
    patches.at_undo(lambda: undone.append(True))

    def put(module: ModuleType) -> None:
        for name in ("func", "afunc"):
            setattr(module.RunnableCallable, name, _Kept(name, lambda: patches.off or bool(undone)))

    def make_attach(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def attach_node(graph: Any, key: str, node: Any) -> None:
            original(graph, key, node)
            if not patches.off:
                for writer in graph.nodes[key].writers:
                    for write in writer.writes:
                        _weaken(getattr(write, "mapper", None))

        return attach_node

    patches.at_import(_MODULE, put)
    patches.at_import(_STATE, lambda module: patches.replace(module.CompiledStateGraph, "attach_node", make_attach))


def _weaken(function: Any) -> None:
    """Have a function that calls itself refer to itself weakly."""
    if type(function) is FunctionType:
        for cell in function.__closure__ or ():
            if cell.cell_contents is function:
                cell.cell_contents = weakref.proxy(function)


AGENT_NODES = Accelerator(
    name="agent_nodes",
    targets=(
        Target(_MODULE, "RunnableCallable", frozenset({"bb89f59d4d4784ce"})),
        Target(_STATE, "CompiledStateGraph.attach_node", frozenset({"f6d5a80aec854145"})),
    ),
    install=_install,
    package="langgraph",
)
