"""Takes the graph of an ended run apart. Imports lfx; loaded by LangflowEngine.prepare only.

A graph, its vertices and their components refer to each other, so only the garbage collector would free them, for which
it has to look at all that lives. Taken apart, they are freed at once, and all that they hold with them.

Something of a run may live on: a task, a thread, a tool, a callback, an exception. Whether anything does is told the
collector's own way, for these objects alone: what is referred to more often than by them is in somebody's hands, and
so is all that can be reached from there. Then nothing is touched, and the collector has it in the end.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from contextvars import Context
from enum import Enum, auto
from types import CellType, FunctionType, MethodType
from typing import Any

from lfx.custom.custom_component.component import Component
from lfx.graph.graph.base import Graph
from lfx.graph.vertex.base import Vertex
from lfx.inputs.inputs import BaseInputMixin

from runtime.engine.state import RunState

MOST = 20_000
"""Objects. So many take 20 ms; a graph that holds more is left to the collector."""

AGAIN = 0.25
"""Seconds until the second try."""

_NOTHING = Context()


class _Role(Enum):
    """What becomes of an object that the walk through a graph meets."""

    STRANGE = auto()
    """It is not walked into. What it refers to counts as being in somebody's hands."""
    WALKED = auto()
    CONTAINER = auto()
    """Walked into where anything is in it, but not more than is looked at."""
    PART = auto()
    """One of those that are taken apart."""
    FIELD = auto()
    """A component's input: walked into where its value is more than a text or a number."""
    FUNCTION = auto()
    """Walked into for what it closes over: its module is everybody's."""


_PLAIN: dict[type, _Role] = {
    dict: _Role.CONTAINER,
    list: _Role.CONTAINER,
    tuple: _Role.CONTAINER,
    MethodType: _Role.WALKED,
    CellType: _Role.WALKED,
    FunctionType: _Role.FUNCTION,
}
_PARTS = (Graph, Vertex, Component)
_WALKED = ("lfx.graph.", "lfx.template.", "lfx.base.tools.", "lfx.schema.log", "openai._")
"""Where the classes are of which objects stand between a graph's parts: results, outputs, tools."""
_CLIENTS = "openai.resources."
"""Where those of the parts of a model's client are."""
_ASIDE = "lfx.graph.edge."
"""Edges name their ends, and do not have them."""


def leave(graph: Any, state: RunState, left_whole: Callable[[], None]) -> None:
    """Have the graph of a run that has ended taken apart, once the loop has done what the run leaves it to do next.

    Where something has it then, such as a thread that is about to be done, it is tried once more. ``left_whole`` is
    called where it is left as it is.
    """
    state.loop.call_soon(_part, [graph], state, left_whole, False, context=_NOTHING)


def _part(holder: list[Any], state: RunState, left_whole: Callable[[], None], last: bool) -> None:
    _forget_cancelled(state.loop)
    if (held := _take_apart(holder)) is not None:
        if last:
            left_whole()
        else:
            state.loop.call_later(AGAIN, _part, [held], state, left_whole, True, context=_NOTHING)
        return
    holder += state.clients  # those that have not gone with it
    while holder:
        _take_apart(holder)


def _forget_cancelled(loop: asyncio.AbstractEventLoop) -> None:
    """Take their contexts from the loop's cancelled timers, of which it keeps a hundred until they are due.

    A model's answer leaves one for each of its parts, for two minutes, and each has the whole run in its context.
    """
    for timer in getattr(loop, "_scheduled", ()):
        if timer.cancelled():
            timer._context = _NOTHING


def _take_apart(holder: list[Any]) -> Any:
    """Take the last thing out of ``holder``, and apart if nobody else has any of it; else it is returned."""
    objects, counts, kinds = _walk(holder)
    if len(objects) > MOST:
        return objects[0]
    held = _held(objects, counts)
    if id(objects[0]) in held:
        return objects[0]
    for part in [each for each in objects if type(each) in kinds]:
        if id(part) not in held:
            vars(part).clear()
    return None


def _walk(holder: list[Any]) -> tuple[list[Any], dict[int, int], set[type]]:
    """The objects of a graph, itself first; how often they refer to each other, by id; the types of its parts."""
    objects = [holder.pop()]
    counts = dict.fromkeys(map(id, (*objects, *_json(objects[0]))), 0)
    roles: dict[type, _Role] = {**_PLAIN, type(objects[0]): _Role.PART}
    strange, function = _Role.STRANGE, _Role.FUNCTION
    ahead = objects[:]
    while ahead and len(objects) <= MOST:
        met = filter(gc.is_tracked, gc.get_referents(*ahead))
        ahead = []
        for each in met:
            key = id(each)
            if key in counts:
                counts[key] += 1
                continue
            role = roles.get(type(each)) or roles.setdefault(type(each), _role(type(each)))
            if role is strange or not _leads_on(each, role):
                continue
            if len(ahead) > MOST:
                break
            if role is not function:
                counts[key] = 1
                ahead.append(each)
            else:
                counts[key] = 1
                objects.append(each)
                for inner in (each.__closure__, vars(each)):
                    if id(inner) not in counts:
                        counts[id(inner)] = 0
                        ahead.append(inner)
                    counts[id(inner)] += 1
        objects += ahead
    return objects, counts, {kind for kind, role in roles.items() if role is _Role.PART}


def _leads_on(each: Any, role: _Role) -> bool:
    if role is _Role.CONTAINER:
        return 0 < len(each) <= MOST
    if role is _Role.FIELD:
        return gc.is_tracked(getattr(each, "value", None))
    return role is not _Role.FUNCTION or each.__closure__ is not None


def _json(thing: Any) -> Iterator[Any]:
    """The JSON that a graph was made of: much, and it refers to nothing else."""
    if isinstance(thing, Graph):
        yield from (thing.raw_graph_data, thing._vertices, thing._edges)
        for vertex in thing.vertices:
            yield from (vertex.full_data, vertex.data)


def _role(kind: type) -> _Role:
    # A finalizer may look at what it was part of.
    module = str(kind.__module__)
    if issubclass(kind, (type, Enum)) or hasattr(kind, "__del__"):
        return _Role.STRANGE
    if issubclass(kind, _PARTS) or module.startswith(_CLIENTS):
        return _Role.PART
    if issubclass(kind, BaseInputMixin):
        return _Role.FIELD
    walked = module.startswith(_WALKED) and not module.startswith(_ASIDE)
    return _Role.WALKED if walked else _Role.STRANGE


def _held(objects: list[Any], counts: dict[int, int]) -> set[int]:
    """The ids of those of the objects that somebody else refers to, and of all that these lead to."""
    objects.append(object())
    *found, spare = map(sys.getrefcount, objects)
    objects.pop()
    ahead = [each for each, count in zip(objects, found, strict=True) if count - spare > counts[id(each)]]
    held = set(map(id, ahead))
    while ahead:
        # Of all that a function refers to, only its closure is among the objects, and so are its cells.
        met = filter(gc.is_tracked, gc.get_referents(*ahead))
        ahead = []
        for each in met:
            key = id(each)
            if key in counts and key not in held:
                held.add(key)
                ahead.append(each)
    return held
