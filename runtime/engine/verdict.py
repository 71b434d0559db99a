"""Whether an export can be loaded at all, said in one sentence that names the component. Pure, but for ``blame``.

The engine accepts an empty flow and ignores an edge to a field that does not exist; both would run something else than
what was drawn. Of the rest it says ``KeyError: 'data'`` and the like.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from runtime.engine.catalog import Catalog
from runtime.engine.export import Export, Node, graph_data, is_note, raw_nodes, read_export
from runtime.engine.imports import imports_of
from runtime.engine.needs import field_label, label
from runtime.engine.upgrade import saved_by
from runtime.errors import EngineError, FlowInvalid, FlowUnready

_ENGINE_PACKAGES = ("langflow", "lfx")


def check_shape(export: Mapping[str, Any]) -> None:
    """Refuse what is not a whole flow. Raises FlowInvalid."""
    for problem in _problems(export):
        raise FlowInvalid(problem)


def load_failure(error: BaseException, export: Mapping[str, Any], catalog: Catalog) -> EngineError | FlowInvalid:
    """What the engine's failure to load ``export`` means: FlowUnready if a package is missing, else FlowInvalid."""
    from lfx.utils.flow_validation import CustomComponentValidationError  # noqa: PLC0415

    root = _root(error)
    if isinstance(root, CustomComponentValidationError):
        return FlowInvalid(f"{root} (LANGFLOW_ALLOW_CUSTOM_COMPONENTS=false)")
    if isinstance(root, ModuleNotFoundError) and root.name and not root.name.startswith(_ENGINE_PACKAGES):
        package = catalog.package_of(root.name)
        where = f": {label(node)} imports {root.name!r}" if (node := _importer(export, root.name)) else ""
        return FlowUnready(needs=(f"pip install {package}{where}, which is not installed",))
    node, cause = blame(export) or (None, root)
    told = f"{type(cause).__name__}: {cause}".splitlines()[0][:300]
    if node is None:
        return FlowInvalid(f"{_saved(export)}; Langflow {installed_version()} cannot load it: {told}")
    return FlowInvalid(f"{_saved(export)}; {label(node)} does not fit Langflow {installed_version()}: {told}")


def blame(export: Mapping[str, Any]) -> tuple[Node, BaseException] | None:
    """The first component whose saved source cannot be made a class here, and why. Executes the components' sources."""
    from lfx.custom.eval import eval_custom_component_code  # noqa: PLC0415

    for node in read_export(export, route="").nodes:
        try:
            eval_custom_component_code(node.code)
        except Exception as error:  # noqa: BLE001  whatever the source raises is what we are after
            return node, _root(error)
    return None


def installed_version() -> str:
    """The version of the engine that is installed."""
    for package in ("langflow", "lfx"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "1.13"


def _saved(export: Mapping[str, Any]) -> str:
    known = saved_by(export)
    if not known and _is_0x(read_export(export, route="")):
        return "saved by Langflow 0.x"
    return f"saved by Langflow {known}" if known else "saved by an unknown version of Langflow"


def _is_0x(export: Export) -> bool:
    """Components have had a list of outputs since 1.0."""
    return bool(export.nodes) and not any("outputs" in node.body for node in export.nodes)


def _problems(export: Mapping[str, Any]) -> Iterator[str]:
    if "flows" in export and "data" not in export:
        yield "this is an export of several flows; give each flow of it to the engine"
    data = graph_data(export)
    if not isinstance(data.get("nodes"), list):
        yield "the file is not a flow exported from Langflow: it has no 'data' with a list of 'nodes'"
    if not isinstance(data.get("edges", []), list):
        yield "the file is not a flow exported from Langflow: 'edges' is not a list"
    if any(not isinstance(node, Mapping) for node in data["nodes"]):
        yield "the file is not a flow exported from Langflow: a node is not an object"
    flow = read_export(export, route="")
    if not flow.nodes:
        notes = any(is_note(node) for node in data["nodes"])
        yield f"the flow has no components{', only notes' if notes else ''}"
    yield from _node_problems(export, flow)
    yield from _edge_problems(export, data)


def _node_problems(export: Mapping[str, Any], flow: Export) -> Iterator[str]:
    again = [node_id for node_id, count in Counter(node.id for node in flow.nodes).items() if count > 1]
    if again:
        yield f"two components share the id {again[0]!r}"
    if _is_0x(flow):
        yield (
            f"{_saved(export)}, in a format older than 1.0, which Langflow {installed_version()} cannot load; open the "
            "flow in Langflow 1.x, replace the components it marks, and export it again"
        )
    for node in flow.nodes:
        if not node.id:
            yield f"component {node.name!r} has no id"
        if not node.template:
            yield f"{_saved(export)}; {label(node)} has no fields: the file is not a whole export"
        if not node.code:
            yield (
                f"{_saved(export)}; {label(node)} has no saved source and Langflow {installed_version()} needs one, "
                "so replace the component in Langflow and export the flow again"
            )


def _edge_problems(export: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[str]:
    """Edges that lead nowhere. Those that touch a group are the engine's to resolve."""
    groups = {str(n.get("id")) for n in raw_nodes(data)} - {n.id for n in read_export(export, route="").nodes}
    flow = read_export(export, route="")
    for edge in flow.edges:
        for end in (edge.source, edge.target):
            if end not in flow.by_id and end not in groups:
                yield f"a connection leads from {edge.source!r} to {edge.target!r}, but there is no component {end!r}"
        if edge.target in groups or edge.source in groups:
            continue
        target = flow.by_id[edge.target]
        if edge.field not in target.template and edge.field not in _outputs(target):
            where = field_label(target, edge.field) if edge.field else "an unnamed field"
            yield (
                f"{_saved(export)}; {label(target)} has no field {where}, to which {label(flow.by_id[edge.source])} is "
                "connected: the connection would be dropped; connect it again in Langflow"
            )


def _outputs(node: Node) -> set[Any]:
    """Outputs count as targets: a loop takes its items back there."""
    return {output.get("name") for output in node.body.get("outputs") or () if isinstance(output, Mapping)}


def _importer(export: Mapping[str, Any], module: str) -> Node | None:
    top = module.partition(".")[0]
    for node in read_export(export, route="").nodes:
        found = imports_of(node.code)
        if any(name.partition(".")[0] == top for name in found.needed | found.optional):
            return node
    return None


def _root(error: BaseException) -> BaseException:
    """The first cause in a chain of exceptions."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if following is None:
            return error
        error = following
    return error
