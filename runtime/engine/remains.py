"""Takes the graph of an ended run apart. Imports lfx; loaded by LangflowEngine.prepare only.

A graph, its vertices and their components refer to each other, so only the garbage collector would free them, for which
it has to look at all that lives. Taken apart, they are freed at once, and all that they hold with them.

Something of a run may live on: a task, a thread, a tool, a callback, an exception. Whether anything does is told the
collector's own way, for these objects alone: what is referred to more often than by them is in somebody's hands, and so
is all that can be reached from there. Where that is a part of the graph, nothing is touched, and the collector has it
in the end.

Threads go on meanwhile. So what the objects refer to, and how often they are referred to, weakly too, is read in one
step of the interpreter's, in which no thread gets a turn: what nobody had then, nobody can get at.
"""

from __future__ import annotations

import asyncio
import gc
import operator
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import Context
from enum import Enum, auto
from functools import partial
from itertools import repeat
from types import CellType, FunctionType, MethodType
from typing import Any

import structlog
from lfx.custom.custom_component.component import Component
from lfx.graph.graph.base import Graph
from lfx.graph.vertex.base import Vertex
from lfx.inputs.inputs import BaseInputMixin

from runtime.engine.accelerators.ended_graphs import is_on
from runtime.engine.state import RunState

MOST = 10_000
"""References to what may hold more, which are followed: 10 ms. A graph with more is left to the collector."""

MOST_ENTRIES = 30_000
"""Entries of its lists, tuples and dictionaries, of whatever kind: they are read thrice, 5 ms for so many."""

LONG = 1_000
"""Entries of a list, tuple or dictionary that is not looked into: it is data, and if not, it has what it has."""

AGAIN = 0.25
"""Seconds until the second try."""

log = structlog.get_logger("headrace.engine")


class Remains(Enum):
    """What has become of a graph."""

    APART = auto()
    HELD = auto()
    """Somebody has something of it. It is as it was."""
    TOO_MUCH = auto()
    """It holds more than is looked at. It is as it was."""


class _Role(Enum):
    """What becomes of an object that the walk through a graph meets."""

    STRANGE = auto()
    """It is not walked into. What it refers to counts as being in somebody's hands."""
    WALKED = auto()
    CONTAINER = auto()
    """Walked into where anything is in it, and not much."""
    PART = auto()
    """One of those that are taken apart."""
    FIELD = auto()
    """A component's input: walked into where its value is more than a text or a number."""
    FUNCTION = auto()
    """Walked into for what it closes over: its module is everybody's."""


_ROLES: dict[type, _Role] = {
    dict: _Role.CONTAINER,
    list: _Role.CONTAINER,
    tuple: _Role.CONTAINER,
    MethodType: _Role.WALKED,
    CellType: _Role.WALKED,
    FunctionType: _Role.FUNCTION,
}
"""Of the types that are met, those that do not come and go as components' do."""
_HAVE_MORE = (_Role.PART, _Role.FUNCTION)
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
    called where it is left as it is. Called within the run: its route may have switched this off.
    """
    if not is_on():
        left_whole()
        return
    # Each call has a context of its own: what is freed may set variables, and the run's would keep the run.
    state.loop.call_soon(_part, [graph], state, left_whole, False, context=Context())


def _part(holder: list[Any], state: RunState, left_whole: Callable[[], None], last: bool) -> None:
    try:
        _forget_cancelled(state.loop)
        remains = take_apart(holder)
        if remains is Remains.HELD and not last:
            state.loop.call_later(AGAIN, _part, holder, state, left_whole, True, context=Context())
            return
        if remains is not Remains.APART:
            left_whole()
        while state.clients:  # those that have not gone with it; a thread of the run may make more
            holder = [state.clients.popitem()[1]()]
            if holder[0] is not None:
                take_apart(holder)
    except Exception:
        # What is freed may be anybody's, and so may what is walked through.
        left_whole()
        log.warning("graph_not_freed", flow=state.flow_id, exc_info=True)


def _forget_cancelled(loop: asyncio.AbstractEventLoop) -> None:
    """Take their contexts from the loop's cancelled timers, of which it keeps a hundred until they are due.

    A model's answer leaves one for each of its parts, for two minutes, and each has the whole run in its context.
    """
    for timer in getattr(loop, "_scheduled", ()):
        if isinstance(timer, asyncio.TimerHandle) and timer.cancelled():
            timer._context = Context()  # type: ignore[attr-defined]  # asyncio's own, which has no name for it


def take_apart(holder: list[Any]) -> Remains:
    """Take the one thing in ``holder`` apart, with all of its parts, if nobody has any of it; it is put back if not."""
    objects = [holder.pop()]
    parts = _gather(objects)
    if parts is None:
        remains = Remains.TOO_MUCH
    elif hasattr(type(objects[0]), "__del__") or _is_anybodys(objects, parts):
        remains = Remains.HELD
    else:
        remains = Remains.APART
        for attributes in parts.values():
            attributes.clear()
    if remains is not Remains.APART:
        holder.append(objects[0])
    return remains


def _gather(objects: list[Any]) -> dict[int, dict[str, Any]] | None:
    """Add to ``objects`` all that the walk from the first one comes to.

    Gives the attributes of those that are parts, by the part's id, which are objects of their own; None where it is
    too much.
    """
    roles: dict[type, _Role] = {**_ROLES, type(objects[0]): _Role.PART}
    objects.append(_attributes(objects[0]))
    seen = set(map(id, (*objects, *_json(objects[0]))))
    ahead = objects[:]
    followed = entries = 0
    while ahead:
        met = list(filter(gc.is_tracked, gc.get_referents(*ahead)))
        followed += len(met)
        if followed > MOST:
            return None
        by_id = {id(each): each for each in met}
        new = [by_id[key] for key in by_id.keys() - seen]
        seen.update(by_id)
        ahead = []
        for each in new:
            role = roles.get(type(each)) or roles.setdefault(type(each), _role(type(each)))
            if role is _Role.STRANGE or not _leads_on(each, role):
                continue
            # A function itself leads to its module, and so to everything.
            (objects if role is _Role.FUNCTION else ahead).append(each)
            if role is _Role.CONTAINER:
                entries += len(each)
            elif role in _HAVE_MORE:
                more = [inner for inner in _more(each, role) if id(inner) not in seen]
                seen.update(map(id, more))
                ahead += more
        if entries > MOST_ENTRIES:
            return None
        objects += ahead
    return {id(each): _attributes(each) for each in objects if roles.get(type(each)) is _Role.PART}


def _more(each: Any, role: _Role) -> tuple[Any, ...]:
    """What an object leads to by another way than the collector's."""
    return (each.__closure__, each.__dict__) if role is _Role.FUNCTION else (_attributes(each),)


def _attributes(part: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = object.__getattribute__(part, "__dict__")
    return attributes


def _leads_on(each: Any, role: _Role) -> bool:
    if role is _Role.CONTAINER:
        return 0 < len(each) <= LONG
    if role is _Role.FIELD:
        return gc.is_tracked(_attributes(each).get("value"))
    return role is not _Role.FUNCTION or each.__closure__ is not None


def _json(thing: Any) -> Iterator[Any]:
    """The JSON that a graph was made of: much, and it refers to nothing else."""
    if isinstance(thing, Graph):
        yield from (thing.raw_graph_data, thing._vertices, thing._edges)
        for vertex in thing.vertices:
            yield from (vertex.full_data, vertex.data)


def _role(kind: type) -> _Role:
    module = str(kind.__module__)
    role = _role_within(kind, module)
    home = sys.modules.get(module)
    if home is not None and vars(home).get(kind.__name__) is kind:
        _ROLES[kind] = role
    return role


def _role_within(kind: type, module: str) -> _Role:
    # A finalizer may look at what it was part of.
    if type in kind.__mro__ or Enum in kind.__mro__ or hasattr(kind, "__del__"):
        return _Role.STRANGE
    if any(part in kind.__mro__ for part in _PARTS) or module.startswith(_CLIENTS):
        return _Role.PART
    if BaseInputMixin in kind.__mro__:
        return _Role.FIELD
    walked = module.startswith(_WALKED) and not module.startswith(_ASIDE)
    return _Role.WALKED if walked else _Role.STRANGE


def _is_anybodys(objects: list[Any], parts: dict[int, dict[str, Any]]) -> bool:
    """Whether one of the parts can be got at from anything but the objects."""
    met, counts, weak, spare = _read(objects, mark := object())
    own = Counter(map(id, parts.values()))  # the references from ``parts``
    if sys.version_info >= (3, 13):
        for part in objects:
            attributes = parts.get(id(part), part)
            # A part has them all the same where it does not tell.
            own[id(attributes)] += attributes is not part and all(
                each is not attributes for each in gc.get_referents(part)
            )
    within = Counter(met)
    referents: dict[int, list[int]] = {}
    start = 0
    for each in objects:
        end = met.index(id(mark), start)
        referents[id(each)] = met[start:end]
        start = end + 1
    taken = {*parts, *map(id, parts.values())}
    held = {
        key
        for key, count, weakly in zip(referents, counts, weak, strict=True)
        if weakly or count - spare > 2 * within[key] + own[key]
    }
    ahead = held
    while ahead:
        if not taken.isdisjoint(ahead):
            return True
        ahead = {key for each in ahead for key in referents[each] if key in referents} - held
        held |= ahead
    return False


def _read(objects: list[Any], mark: object) -> tuple[list[int], list[int], list[int], int]:
    """What the objects refer to at one moment, and how often they are referred to, with all of that.

    The ids of what each refers to, followed by that of ``mark``, one after the other; the counts, in which what refers
    to an object is twice: itself, and the list that it was read into; how many weak references there are to each; and
    the count of what nothing refers to.
    """
    objects.append(object())
    read = partial(gc.get_referents, *(each for pair in zip(objects, repeat((mark,)), strict=False) for each in pair))
    count: partial[list[int]] = partial(list, map(sys.getrefcount, objects))
    count_weak: partial[list[int]] = partial(list, map(weakref.getweakrefcount, objects))
    collects = gc.isenabled()
    gc.disable()  # what is collected may have finalizers, in which other threads get a turn
    try:
        met, counts, weak = map(operator.call, (read, count, count_weak))
    finally:
        if collects:
            gc.enable()
    objects.pop()
    return list(map(id, met)), counts[:-1], weak[:-1], counts[-1]
