"""From an export to a template that is copied for each run. Imports lfx; loaded by LangflowEngine.prepare only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lfx.graph.graph.base import Graph

from runtime.engine import catalog, family
from runtime.engine.accelerators.graph_copies import GraphPrototypes, switch_caches
from runtime.engine.accelerators.json_copies import packed
from runtime.engine.accelerators.needed_bundles import NAME, load_needed
from runtime.engine.base import FlowSource
from runtime.engine.bindings import Bindings, standard_bindings, variables_of
from runtime.engine.bundles import load_providers
from runtime.engine.edits import Edit
from runtime.engine.export import Export, graph_data, read_export
from runtime.engine.faults import causes, innermost
from runtime.engine.legacy import OldChat, old_chat_components
from runtime.engine.requirements import RUNS_FLOW, Requirements
from runtime.engine.shape import check_shape
from runtime.engine.state import ROOTS
from runtime.engine.tables import cell_names
from runtime.engine.upgrade import saved_by
from runtime.errors import FlowUnready

_REMEMBERS = re.compile(r"get_messages|chat_history|MemoryComponent|LCBuiltinChatMemory")


@dataclass(frozen=True, slots=True)
class Template:
    """A loaded flow: the parsed graph, shared and never run, and what is known of the export it came from.

    ``bindings`` are the standard variables of empty key fields, ``uses`` the variables by component, ``secrets`` the
    literal ones in the files; ``remembers`` tells whether a component may read chat history; ``cells`` are the names in
    table cells that may be variables.
    """

    version: str
    source: FlowSource
    export: Export
    graph: Any
    requirements: Requirements
    bindings: Bindings = field(default_factory=dict)
    uses: Mapping[str, frozenset[str]] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()
    old_chat: Mapping[str, OldChat] = field(default_factory=dict)
    remembers: bool = False
    cells: frozenset[str] = frozenset()
    prototypes: GraphPrototypes = field(default_factory=GraphPrototypes, compare=False, repr=False)

    @property
    def webhook(self) -> bool:
        """Whether the flow has a Webhook component, which gets the whole payload."""
        return bool(self.export.of_type("Webhook"))

    @property
    def runs_others(self) -> bool:
        """Whether the flow has a component that runs another flow."""
        return bool(self.export.of_type(*RUNS_FLOW))

    def copy(self, *, user_id: str, edit: Edit) -> Any:
        """A graph for one run, which changes the copy's JSON by ``edit`` before its components are made."""
        copied = self.prototypes.copy(self.graph, user_id=user_id, edit=edit)
        if copied is not None:
            return copied
        graph = self.graph.copy_for_run(user_id=user_id, before_instantiate=lambda graph: edit(graph.raw_graph_data))
        switch_caches(graph)
        return graph


def load_template(
    source: FlowSource, siblings: Mapping[str, FlowSource], *, user_id: str, roots: tuple[Path, ...] = ()
) -> Template:
    """Load a flow. Blocks while components are imported and compiled: call it in a thread.

    Raises FlowInvalid for what can never load, FlowUnready with all that is missing.
    """
    check_shape(source.export, route=source.route)
    source = family.prepared(source)
    needed = family.requirements(source, siblings)
    if needed.missing:
        raise FlowUnready(needs=tuple(need.message for need in needed.missing))
    load_providers(needed.providers)
    view = read_export(source.export, route=source.route)
    everyone = family.members(source, siblings)
    load_needed(everyone, every=NAME in source.without)
    readable = (*roots, *(member.files_dir for member in everyone))
    token = ROOTS.set(readable)
    try:
        graph = _graph(source, view, user_id)
    finally:
        ROOTS.reset(token)
    bindings = standard_bindings(graph_data(source.export), catalog.installed())
    return Template(
        version=source.version,
        source=source,
        export=view,
        graph=graph,
        requirements=needed,
        bindings=bindings,
        uses={node.id: variables_of(node, bindings, catalog.installed()) for node in view.nodes},
        secrets=tuple(secret for member in everyone for secret in family.secrets(member)),
        roots=readable,
        old_chat=old_chat_components(view),
        cells=cell_names(graph_data(source.export)),
        remembers=any(_REMEMBERS.search(node.code) for node in view.nodes) or len(everyone) > 1,
    )


def _graph(source: FlowSource, view: Export, user_id: str) -> Any:
    try:
        graph = Graph.from_payload(
            family.payload(source),
            flow_id=view.flow_id,
            flow_name=view.name,
            user_id=user_id,
            instantiate_components=False,
        )
    except (Exception, SystemExit) as error:
        raise FlowUnready(needs=(explain("the flow", error, saved_by(source.export)),)) from error
    saved = saved_by(source.export)
    needs = [problem for vertex in graph.vertices if (problem := _try_component(vertex, user_id, saved))]
    if needs:
        raise FlowUnready(needs=tuple(dict.fromkeys(needs)))
    graph.raw_graph_data = packed(graph.raw_graph_data)
    return graph


def _try_component(vertex: Any, user_id: str, saved: str) -> str | None:
    """Make a component once, to find out at load what each run would find out; what is wrong, or None."""
    try:
        vertex.instantiate_component(user_id)
    except (Exception, SystemExit) as error:  # noqa: BLE001  saved code may raise anything
        own = (vertex.data.get("node") or {}).get("lf_version")
        return explain(f"component {vertex.display_name!r} ({vertex.id})", error, str(own or saved))
    finally:
        vertex.custom_component = None
    return None


def explain(what: str, error: BaseException, saved: str) -> str:
    """What keeps ``what`` from loading, as a sentence that says what to do. ``saved`` is the version that saved it."""
    chain = list(causes(error))
    missing = next((e for e in chain if isinstance(e, ModuleNotFoundError) and e.name), None)
    if missing is not None and missing.name is not None and not missing.name.startswith(("lfx.", "langflow.")):
        package = catalog.installed().package_of(missing.name)
        return f"pip install {package}: {what} imports {missing.name!r}, which is not installed"
    if (syntax := next((e for e in chain if isinstance(e, SyntaxError)), None)) is not None:
        return f"{what} has a syntax error in its code: {syntax}"
    root = missing or innermost(chain)
    if type(root).__name__ == "CustomComponentValidationError":
        return f"{root} (LANGFLOW_ALLOW_CUSTOM_COMPONENTS=false)"
    said = f"{type(root).__name__}: {root}".splitlines()[0][:300]
    origin = f", saved by Langflow {saved}," if saved else ""
    return f"{what}{origin} does not fit the installed version: {said}; update it in Langflow and export the flow again"
