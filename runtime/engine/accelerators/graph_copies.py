"""Copy a flow's graph for a run from a prototype.

Why: for each run the engine builds the graph from the flow's JSON and makes every component anew: a quarter of what a
run of a prompt for a model costs, with the same outcome each time.
Safe because: a prototype is made of two graphs that were built the engine's way, each for another user and with other
values of the variables, and is compared with them down to which objects they share; where they differ the flow is built
as ever. Of the components only those are in it whose class is reused (see ``classes``) and whose own source took no
part in making them; the others are made for each run, after them, and a flow has none if one of these has a constructor
of the user's own, which could look at its neighbours. Nor has a flow with a file in a field, whose path the engine
follows, nor what an event changes in the JSON (a tweak, a file).
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import sys
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog

from runtime.engine.accelerators import classes
from runtime.engine.accelerators.base import OFF, Accelerator, Patches, Target
from runtime.engine.export import raw_nodes
from runtime.engine.prototypes import Parts, Prototype, UnlikeError
from runtime.engine.state import ROOTS

if TYPE_CHECKING:
    from runtime.engine.edits import Edit

log = structlog.get_logger("headrace.engine")

AFTER = 3
"""Runs of a kind after which its prototype is worth its making: that takes as long as ten copies."""
AGAIN = 1000
"""So many times later it is tried again, if there was none or no room for it: what was in the way may be gone."""
MAX_KINDS = 8
"""Kinds of runs of one flow (by the variables that it has, streamed or not) that are kept; the eldest goes first."""
MAX_BYTES = 32 * 1024 * 1024
"""What the prototypes of all flows take in a process; the one that was used least lately goes first."""


class GraphPrototypes:
    """The prototypes of one loaded flow, by kind of run. Used on one loop; they are made in threads of it."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()

    def copy(self, graph: Any, *, user_id: str, edit: Edit) -> Any:
        """A graph for a run of the flow that ``graph`` is the template of; None where there is no prototype for it."""
        if _switch.patches is None or _switch.patches.off or (key := edit.key) is None:
            return None
        kind = self._kind((key, OFF.get(), ROOTS.get()))
        if kind.prototype is None:
            kind.runs += 1
            if kind.runs == kind.due:
                kind.due *= AGAIN
                in_thread(kind.make, graph, edit)
        if kind.prototype is None:
            return None
        _switch.kept.use(kind, kind.prototype.size)
        made = kind.prototype.copy(user_id)
        if made is None:
            kind.drop(due=AFTER)
        return made

    def _kind(self, key: Hashable) -> _Kind:
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind()
            while len(self._kinds) > MAX_KINDS:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end(key)
        return kind


def in_thread(work: Callable[..., None], *arguments: Any) -> None:
    """Have work done beside the loop, in the caller's context."""
    asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, work, *arguments)


@dataclass(slots=True, eq=False)
class _Kind:
    runs: int = 0
    due: int = field(default_factory=lambda: AFTER)
    prototype: _GraphPrototype | None = None

    def drop(self, *, due: int) -> None:
        """Have no prototype, for so many runs."""
        self.prototype, self.runs, self.due = None, 0, due

    def make(self, graph: Any, edit: Edit) -> None:
        """Make the prototype. Blocks; raises nothing."""
        try:
            self.prototype = _GraphPrototype(graph, edit)
        except Exception as error:  # noqa: BLE001  the flow is built the engine's way, which tells what is wrong with it
            reason = str(error) if isinstance(error, UnlikeError) else f"{type(error).__name__}: {error}"
            log.info("accelerator.flow_aside", accelerator="graph_copies", flow=graph.flow_name, reason=reason[:500])


class _Kept:
    """The kinds that have a prototype, the one that was used last at the end."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[_Kind, int] = OrderedDict()
        self._bytes = 0

    def use(self, kind: _Kind, size: int) -> None:
        """A kind's prototype, of ``size`` bytes, is used; others are dropped, if they are too many."""
        self._bytes += size - self._sizes.pop(kind, 0)
        self._sizes[kind] = size
        while self._bytes > MAX_BYTES and len(self._sizes) > 1:
            eldest, freed = self._sizes.popitem(last=False)
            self._bytes -= freed
            eldest.drop(due=AFTER * AGAIN)  # at once, flows that do not all fit would be made again and again


class _GraphPrototype:
    """Raises UnlikeError, or whatever building the graph raises."""

    def __init__(self, graph: Any, edit: Edit) -> None:
        if graph._headless_filesystem_user_id is not None:
            raise UnlikeError("it has files of a user of its own")
        if (obstacle := next(_obstacles(graph.raw_graph_data), None)) is not None:
            raise UnlikeError(obstacle)
        ours, theirs = str(uuid.uuid4()), str(uuid.uuid4())
        one, other = _Build(graph, ours, edit.with_values("one")), _Build(graph, theirs, edit.with_values("other"))
        if one.classes != other.classes or one.rest != other.rest:
            raise UnlikeError("its components are not made the same way each time")
        self._classes, self._rest = one.classes, one.rest
        self._prototype = Prototype(
            one.graph,
            other.graph,
            blanks=((ours, theirs),),
            opaque=_switch.opaque,
            texts=_texts(graph.raw_graph_data),
        )

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return self._prototype.size

    def copy(self, user_id: str) -> Any:
        """A graph; None where one of its components' classes is another by now."""
        if any(classes.kept(source) is not made for source, made in self._classes):
            return None
        graph = self._prototype.copy(user_id)
        graph._start_time = datetime.now(UTC)
        for vertex_id in self._rest:
            graph.get_vertex(vertex_id).instantiate_component(user_id)
        if self._rest:
            switch_caches(graph)
        return graph


def _obstacles(data: Mapping[str, Any]) -> Iterator[str]:
    """What keeps a flow from having a prototype, by its JSON."""
    for node in raw_nodes(data):
        for name, value in ((node.get("data") or {}).get("node", {}).get("template") or {}).items():
            if not isinstance(value, Mapping):
                continue
            if value.get("type") == "file" and (value.get("value") or value.get("file_path")):
                yield f"component {node.get('id')}, field {name!r}: a file"
            if name == "code" and _CONSTRUCTOR.search(code := str(value.get("value"))) and not classes.is_shipped(code):
                yield f"component {node.get('id')} has a constructor of its own"


_CONSTRUCTOR = re.compile(r"\bdef\s+__(?:init|new|post_init)__\b")


def _texts(data: Any) -> Iterator[str]:
    """The texts in a flow's JSON."""
    left = [data]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            left.extend(value.values() if isinstance(value, dict) else value)


class _Build:
    """A graph as a run gets it, but for the components that are made for each run."""

    def __init__(self, template: Any, user_id: str, edit: Edit) -> None:
        self.graph = template._copy_graph(
            {},
            user_id=user_id,
            instantiate_components=False,
            before_initialize=lambda graph: edit(graph.raw_graph_data),
        )
        self.classes: list[tuple[tuple[str, str], type]] = []
        self.rest: list[str] = []
        for vertex in self.graph.vertices:
            self._instantiate(vertex, user_id)
        self.graph._instantiate_components_on_initialize = True
        self.graph._start_time = None
        if not self.rest:
            switch_caches(self.graph)

    def _instantiate(self, vertex: Any, user_id: str) -> None:
        source = _switch.source_of(vertex)
        made = classes.kept(source)
        if made is not None:
            with _watched(_globals_of(made)) as ran:
                vertex.instantiate_component(user_id)
            if not ran and type(vertex.custom_component) is made:
                self.classes.append((source, made))
                return
        vertex.custom_component = None
        self.rest.append(vertex.id)


def switch_caches(graph: Any) -> None:
    """Switch the output caches of looping components off, once they are made; else loops saved by 1.1-1.4 never end."""
    graph._set_cache_to_vertices_in_cycle()
    graph._set_cache_if_listen_notify_components()


def _globals_of(made: type) -> frozenset[int]:
    """The ids of the namespaces that the functions of a class live in, and of its bases from the same source."""
    functions = (
        getattr(value, "fget", None) or getattr(value, "__func__", value)
        for base in made.__mro__
        if base.__module__ == made.__module__
        for value in vars(base).values()
    )
    return frozenset(id(function.__globals__) for function in functions if hasattr(function, "__globals__"))


@contextmanager
def _watched(namespaces: frozenset[int]) -> Iterator[list[str]]:
    """The functions of these namespaces that are called meanwhile, by this thread."""
    called: list[str] = []

    def watch(frame: FrameType, event: str, _about: Any) -> None:
        if event == "call" and id(frame.f_globals) in namespaces:
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield called
    finally:
        sys.setprofile(before)


def _parts_of_table(table: Any) -> Iterable[tuple[str, Any]]:
    """What a DataFrame holds: a table field's value."""
    yield ".shape", table.shape
    yield ".dtypes", [str(each) for each in table.dtypes]
    yield ".attrs", table.attrs
    for name, labels in ((".index", table.index), (".columns", table.columns)):
        yield name, [type(labels), list(labels.names), labels.tolist()]
    for place in range(table.shape[1]):
        yield f".iloc[:, {place}]", table.iloc[:, place].tolist()


class _Switch:
    """What the accelerator found where it is installed."""

    patches: Patches | None = None
    kept = _Kept()
    source_of: Callable[[Any], tuple[str, str]]
    opaque: Mapping[type, Parts]


_switch = _Switch()


def _install(patches: Patches) -> None:
    loading = patches.module("lfx.interface.initialize.loading")
    validation = patches.module("lfx.utils.flow_validation")

    def source_of(vertex: Any) -> tuple[str, str]:
        code = validation.resolve_trusted_code_for_build(vertex.params.get("code", ""))
        return code, loading._component_class_name(vertex)

    def undo() -> None:
        _switch.patches, _switch.kept = None, _Kept()

    _switch.patches, _switch.source_of = patches, source_of
    _switch.opaque = {patches.module("pandas").DataFrame: _parts_of_table}
    patches.at_undo(undo)


_GRAPH = "lfx.graph.graph.base"
_VERTEX = "lfx.graph.vertex.base"
_COMPONENT = "lfx.custom.custom_component"

GRAPH_COPIES = Accelerator(
    name="graph_copies",
    targets=(
        Target(_GRAPH, "Graph.__init__", frozenset({"f90f85d118ca7fec"})),
        Target(_GRAPH, "Graph.copy_for_run", frozenset({"0fb1255dbdb4d33c"})),
        Target(_GRAPH, "Graph._copy_graph", frozenset({"e288a72e97223637"})),
        Target(_GRAPH, "Graph.add_nodes_and_edges", frozenset({"42a7772766079fb3"})),
        Target(_GRAPH, "Graph.initialize", frozenset({"662a45350a71f086"})),
        Target(_GRAPH, "Graph._build_graph", frozenset({"92d5240cf8828df7"})),
        Target(_GRAPH, "Graph._instantiate_components_in_vertices", frozenset({"6ed14d4381e39f5b"})),
        Target(_VERTEX, "Vertex.__init__", frozenset({"cca205f52d1213eb"})),
        Target(_VERTEX, "Vertex.instantiate_component", frozenset({"3ea9d45ecd21cef1"})),
        Target("lfx.interface.initialize.loading", "instantiate_class", frozenset({"62cd63513070f03a"})),
        Target(f"{_COMPONENT}.component", "Component.__init__", frozenset({"781cbb212a653670"})),
        Target(f"{_COMPONENT}.custom_component", "CustomComponent.__init__", frozenset({"f696ba20d50b3c88"})),
        Target(f"{_COMPONENT}.base_component", "BaseComponent.__init__", frozenset({"e647e25db25bb315"})),
    ),
    install=_install,
)
