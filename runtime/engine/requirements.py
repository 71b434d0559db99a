"""What a flow needs to run: models, credentials, variables, packages, files and other flows. Runs nothing of the flow.

One analysis serves three: the engine's load (what is missing for good makes the route unready), its preflight before
each run (what an event, a tweak or the environment may still bring), and ``headrace flows check``.

Only components that run are asked for their values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from runtime.engine.base import FlowSource
from runtime.engine.catalog import Catalog, Provider
from runtime.engine.export import Export, Node, read_export
from runtime.engine.imports import imports_of
from runtime.engine.needs import Condition, Need, NeedKind, Stage, field_label, label
from runtime.engine.reach import FILLED_BY_EVENTS, running

NEEDS_DATABASE = frozenset({"Knowledge", "KnowledgeBase", "KnowledgeIngestion", "KnowledgeRetrieval", "MemoryBase"})
"""Components that read Langflow's own database, which a headless run has not."""

RUNS_FLOW = {
    "RunFlow": ("flow_id_selected", "flow_name_selected"),
    "SubFlow": ("", "flow_name"),
    "FlowTool": ("", "flow_name"),
}
"""Components that run another flow: the fields that hold its id and its name."""

READS_FILES = frozenset({"File", "FileComponent"})

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_ .-]{0,63}")
_ENVIRONMENT_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class Requirements:
    """A flow's requirements against what is installed and lies beside it.

    ``missing`` is what no event can bring (Stage.LOAD). ``conditions`` are asked before each run. ``variables`` holds
    every variable the flow or its providers may ask for, ``providers`` its model providers. ``remarks`` are worth a
    warning.
    """

    missing: tuple[Need, ...] = ()
    conditions: tuple[Condition, ...] = ()
    wants_files: tuple[Condition, ...] = ()
    """File components without a stored file: each event must bring one, or a tweak."""
    variables: frozenset[str] = frozenset()
    providers: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()

    def unmet(self, *, variables: Collection[str], tweaked: Collection[tuple[str, str]] = ()) -> tuple[Need, ...]:
        """The conditions that are not met: the route's fault."""
        return tuple(c.need for c in self.conditions if not c.met(variables=variables, tweaked=tweaked))

    def fileless(self, *, tweaked: Collection[tuple[str, str]] = ()) -> tuple[Need, ...]:
        """The file components that this run leaves without a file: the event's fault."""
        return tuple(c.need for c in self.wants_files if not c.met(variables=(), tweaked=tweaked))


def analyse(source: FlowSource, siblings: Mapping[str, FlowSource], catalog: Catalog) -> Requirements:
    """Read the requirements of ``source``, whose export has the shape of one. Never raises for its content."""
    export = read_export(source.export, route=source.route)
    return _Analysis(export, source, siblings, catalog).result()


def find_child(siblings: Mapping[str, FlowSource], *, flow_id: str, flow_name: str) -> FlowSource | None:
    """The flow that a Run Flow component means: by its id, then by its name, then by the route's name."""
    for key, value in (("id", flow_id), ("name", flow_name)):
        if value and (found := next((s for s in siblings.values() if s.export.get(key) == value), None)):
            return found
    return siblings.get(flow_name)


class _Analysis:
    """One pass over an export. Collects; decides nothing about the run."""

    def __init__(
        self, export: Export, source: FlowSource, siblings: Mapping[str, FlowSource], catalog: Catalog
    ) -> None:
        self.export = export
        self.source = source
        self.siblings = siblings
        self.catalog = catalog
        self.missing: list[Need] = []
        self.conditions: list[Condition] = []
        self.wants_files: list[Condition] = []
        self.variables: set[str] = set()
        self.providers: set[str] = set()
        self.remarks: list[str] = []

    def result(self) -> Requirements:
        runs = running(self.export)
        for node in self.export.nodes:
            self._packages(node)  # the engine makes every component at load, those that never run too
            if node.id not in runs:
                continue
            provider = self._model(node)
            for name, field in node.fields:
                if self._open(node, name, field):
                    self._field(node, name, field, provider)
            self._child(node)
            self._database(node)
        return Requirements(
            tuple(dict.fromkeys(self.missing)),
            tuple(self.conditions),
            tuple(self.wants_files),
            frozenset(self.variables),
            frozenset(self.providers),
            tuple(dict.fromkeys(self.remarks)),
        )

    def _open(self, node: Node, name: str, field: Mapping[str, Any]) -> bool:
        """Whether a field's own value counts: it is shown (the engine drops hidden fields) and no edge feeds it."""
        return bool(field.get("show", True)) and (node.id, name) not in self.export.fed

    def _need(self, node: Node, kind: NeedKind, stage: Stage, message: str, *, name: str = "", field: str = "") -> Need:
        return Need(kind, stage, message, name, node.id, node.name, field or None)

    # --- packages ---------------------------------------------------------------------------------------------------

    def _packages(self, node: Node) -> None:
        found = imports_of(node.code)
        for module in sorted(found.needed):
            if not self.catalog.has_module(module):
                package = self.catalog.package_of(module)
                text = f"pip install {package}: {label(node)} imports {module!r}, which is not installed"
                self.missing.append(self._need(node, NeedKind.PACKAGE, Stage.LOAD, text, name=package))
        absent = sorted(m for m in found.optional - found.needed if not self.catalog.has_module(m))
        if absent:
            packages = " ".join(self.catalog.package_of(module) for module in absent)
            self.remarks.append(f"{label(node)} may ask for packages that are not installed: pip install {packages}")

    # --- models and their credentials -------------------------------------------------------------------------------

    def _model(self, node: Node) -> Provider | None:
        """Check the node's model fields. The provider that is selected, if the node has selected one."""
        selected = None
        for name, field in node.fields:
            if field.get("type") != "model" or not self._open(node, name, field):
                continue
            value = field.get("value")
            if value in (None, "", []):
                if field.get("required"):
                    self._model_missing(node, name, f"has no model; choose one in Langflow, or set {name!r} by a tweak")
            elif value == "connect_other_models":
                self._model_missing(node, name, "waits for a model to be connected; connect one in Langflow")
            elif isinstance(value, list) and isinstance(value[0], Mapping):
                selected = self._selected(node, name, value[0]) or selected
        return selected

    def _model_missing(self, node: Node, field: str, what: str) -> None:
        text = f"choose a model: {label(node)}, field {field_label(node, field)} {what}"
        need = self._need(node, NeedKind.MODEL, Stage.RUN, text, field=field)
        self.conditions.append(Condition(need, fields=frozenset({field})))

    def _selected(self, node: Node, field: str, choice: Mapping[str, Any]) -> Provider | None:
        name = str(choice.get("provider") or "")
        if name in ("", "Unknown"):
            self._model_missing(node, field, "names a model without its provider; choose the model again in Langflow")
            return None
        self.providers.add(name)
        provider = self.catalog.provider(name)
        if provider is None:
            text = (
                f"install the extension that brings the model provider {name!r} (for example "
                f"pip install lfx-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}): {label(node)} uses it"
            )
            self.missing.append(self._need(node, NeedKind.PROVIDER, Stage.LOAD, text, name=name, field=field))
            return None
        if provider.module and not self.catalog.has_module(provider.module):
            text = f"pip install {provider.package}: {label(node)} uses the model provider {name!r}"
            self.missing.append(self._need(node, NeedKind.PACKAGE, Stage.LOAD, text, name=provider.package or ""))
        self._credentials(node, field, provider)
        return provider

    def _credentials(self, node: Node, model_field: str, provider: Provider) -> None:
        self.variables.update(variable.name for variable in provider.variables)
        if provider.key is not None:
            self._credential(node, model_field, provider, provider.key, _key_fields(node, provider))
        for variable in provider.variables:
            if variable.required and not variable.secret:
                self._credential(node, model_field, provider, variable.name, [variable.field] if variable.field else [])

    def _credential(self, node: Node, model_field: str, provider: Provider, name: str, fields: list[str]) -> None:
        """One credential of a provider: from its own variable, or from one of the component's fields."""
        names = {name}
        for field in fields:
            described = node.template.get(field) or {}
            if (node.id, field) in self.export.fed:
                return
            bound, literal = _binding(described)
            if literal:
                return
            names.update([bound] if bound else [])
        self.variables |= names
        server = provider.own_server if name == provider.key else None
        text = (
            f"set the variable {' or '.join(sorted(names))} (in the environment, or under 'variables' in the route "
            f"spec){f', or {server} for a server of your own' if server else ''}: {label(node)} calls {provider.name!r}"
        )
        names.update([server] if server else [])
        need = self._need(node, NeedKind.VARIABLE, Stage.RUN, text, name=name, field=(fields or [model_field])[0])
        self.conditions.append(Condition(need, frozenset(names), frozenset({*fields, model_field})))

    # --- fields -----------------------------------------------------------------------------------------------------

    def _field(self, node: Node, name: str, field: Mapping[str, Any], provider: Provider | None) -> None:
        kind = field.get("type")
        if kind == "file":
            self._file(node, name, field)
        elif kind == "table":
            self.variables.update(_table_variables(field))
        elif kind in ("model", "code"):
            return
        elif provider is not None and name in _key_fields(node, provider):
            # The key field beside a model selection: the provider's own variable stands in for it, see _credential.
            self._literal_secret(node, name, field)
        else:
            self._value(node, name, field)

    def _value(self, node: Node, name: str, field: Mapping[str, Any]) -> None:
        value = field.get("value")
        if value in (None, "", [], {}):
            self._empty(node, name, field)
        elif field.get("load_from_db") and isinstance(value, str):
            self._bound(node, name, field, value)
        else:
            self._literal_secret(node, name, field)

    def _bound(self, node: Node, name: str, field: Mapping[str, Any], variable: str) -> None:
        """A field bound to a variable. Where the component itself binds it and does without, it may stay unset."""
        if not _NAME.fullmatch(variable):
            # Not shown: it may be a secret that was typed into a field marked as a variable. The engine drops it.
            text = (
                f"{label(node)}, field {field_label(node, name)} is marked as a variable but holds something else; "
                "choose a variable in Langflow, or type the value in again"
            )
            need = self._need(node, NeedKind.FIELD, Stage.RUN, text, name=name, field=name)
            self.conditions.append(Condition(need, fields=frozenset({name})))
            return
        self.variables.add(variable)
        if not field.get("required") and re.search(rf"['\"]{re.escape(variable)}['\"]", node.code):
            return
        text = (
            f"set the variable {variable} (in the environment, or under 'variables' in the route spec): {label(node)}, "
            f"field {field_label(node, name)} reads it"
        )
        need = self._need(node, NeedKind.VARIABLE, Stage.RUN, text, name=variable, field=name)
        self.conditions.append(Condition(need, frozenset({variable}), frozenset({name})))

    def _empty(self, node: Node, name: str, field: Mapping[str, Any]) -> None:
        """A required field without a value: the UI refuses to run such a component, the engine alone does not."""
        if not field.get("required") or node.type in FILLED_BY_EVENTS or node.type in NEEDS_DATABASE:
            return
        secret = bool(field.get("password"))
        if node.tool_mode and not secret:
            if not field.get("tool_mode"):  # else the agent fills it
                self.remarks.append(f"{label(node)}, a tool: its required field {field_label(node, name)} is empty")
            return
        how = "bind it to a variable in Langflow and set that variable" if secret else "fill it in Langflow"
        text = f"{label(node)}: the required field {field_label(node, name)} is empty; {how}, or set it by a tweak"
        need = self._need(node, NeedKind.FIELD, Stage.RUN, text, name=name, field=name)
        self.conditions.append(Condition(need, fields=frozenset({name})))

    def _literal_secret(self, node: Node, name: str, field: Mapping[str, Any]) -> None:
        value = field.get("value")
        if field.get("password") and not field.get("load_from_db") and isinstance(value, str) and value:
            if _ENVIRONMENT_NAME.fullmatch(value):
                self.variables.add(value)  # the engine's providers read such a value as a variable's name
                return
            where = f"{label(node)}, field {field_label(node, name)}"
            self.remarks.append(f"the file holds a secret: {where}; bind the field to a variable")

    # --- files, other flows, the database ---------------------------------------------------------------------------

    def _file(self, node: Node, name: str, field: Mapping[str, Any]) -> None:
        paths = stored_paths(field)
        for path in paths:
            base = PurePosixPath(path.replace("\\", "/")).name
            if not (self.source.files_dir / base).is_file():
                text = (
                    f"put {base} into {self.source.files_dir}/: {label(node)}, field {field_label(node, name)} reads it"
                )
                self.missing.append(self._need(node, NeedKind.FILE, Stage.LOAD, text, name=base, field=name))
        if not paths and node.type in READS_FILES and not node.tool_mode:
            text = f"each event must bring a file ('files'): {label(node)} has none stored"
            need = self._need(node, NeedKind.FILE, Stage.EVENT, text, field=name)
            self.wants_files.append(Condition(need, fields=frozenset({name})))

    def _child(self, node: Node) -> None:
        if node.type not in RUNS_FLOW:
            return
        flow_id, flow_name = (str((node.template.get(f) or {}).get("value") or "") for f in RUNS_FLOW[node.type])
        if find_child(self.siblings, flow_id=flow_id, flow_name=flow_name) is not None:
            return
        if not flow_id and not flow_name:
            text = f"choose the flow that {label(node)} runs, in Langflow"
        else:
            called = f"{flow_name!r}" + (f" (id {flow_id})" if flow_id else "")
            text = f"put the export of the flow {called} beside this one: {label(node)} runs it"
        self.missing.append(self._need(node, NeedKind.SUBFLOW, Stage.LOAD, text, name=flow_name or flow_id))

    def _database(self, node: Node) -> None:
        if node.type in NEEDS_DATABASE:
            instead = "use a vector store component (Chroma, Astra DB, pgvector, ...), or chat memory"
        elif node.type == "SaveToFile" and _saves_locally(node):
            instead = "let it write to AWS or Google Drive, or publish the text and write it elsewhere"
        else:
            return
        if node.tool_mode:
            self.remarks.append(f"{label(node)}, a tool, needs Langflow's own database: a call of it will fail")
            return
        text = f"replace {label(node)}: it needs Langflow's own database, which does not exist here; {instead}"
        self.missing.append(self._need(node, NeedKind.COMPONENT, Stage.LOAD, text, name=node.type))


def stored_paths(field: Mapping[str, Any]) -> tuple[str, ...]:
    """The paths that a file field holds. The engine reads ``file_path``; ``value`` is what the UI shows."""
    stored = field.get("file_path")
    paths = [stored] if isinstance(stored, str) else stored if isinstance(stored, list) else []
    return tuple(path for path in paths if isinstance(path, str) and path)


def _saves_locally(node: Node) -> bool:
    """Whether a Write File component stores through Langflow's own file service: its default."""
    chosen = (node.template.get("storage_location") or {}).get("value")
    places = [place.get("name") for place in chosen or () if isinstance(place, Mapping)]
    return not places or "Local" in places


def _key_fields(node: Node, provider: Provider) -> list[str]:
    """The component's fields that take the provider's key."""
    names = {variable.field for variable in provider.variables if variable.secret}
    return [name for name, field in node.fields if name in names and field.get("show", True)]


def _binding(field: Mapping[str, Any]) -> tuple[str | None, bool]:
    """The variable that a field is bound to, and whether it holds a literal value instead."""
    value = field.get("value")
    if not isinstance(value, str) or not value.strip():
        return None, False
    if field.get("load_from_db") or (field.get("password") and _ENVIRONMENT_NAME.fullmatch(value)):
        return value, False
    return None, True


def _table_variables(field: Mapping[str, Any]) -> Iterator[str]:
    """The variables that a table's cells name, in columns that load from variables."""
    schema = field.get("table_schema")
    columns = schema.get("columns") if isinstance(schema, Mapping) else schema
    names = [c.get("name") for c in columns or () if isinstance(c, Mapping) and c.get("load_from_db")]
    rows = field.get("value")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, Mapping):
            yield from (row[name] for name in names if isinstance(row.get(name), str) and row[name])
