"""Flows that run other flows: Run Flow, Sub Flow and Flow as Tool find their child among the registry's flows.

In Langflow they look it up in the server's database. The functions they call for that are replaced by ones that look
among the run's siblings, and that run the child with the parent's variables, chat scope and observer. Imports lfx;
loaded by LangflowEngine.prepare only.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from typing import Any

from lfx.graph.graph.base import Graph
from lfx.run.hitl import raise_if_nested_hitl_unsupported
from lfx.schema.data import Data

from runtime.engine import catalog, family
from runtime.engine.accelerators.needed_bundles import load_needed_by_run
from runtime.engine.base import FlowSource
from runtime.engine.bindings import bind, standard_bindings
from runtime.engine.export import flow_uuid
from runtime.engine.requirements import find_child
from runtime.engine.runner import bind_graph
from runtime.engine.standalone import put
from runtime.engine.state import CURRENT, RunState
from runtime.engine.streaming import set_streaming

MAX_DEPTH = 16

_DEPTH: ContextVar[int] = ContextVar("headrace_subflow_depth", default=0)


def install() -> None:
    """Put the functions in place. May be repeated."""
    names = ["lfx.helpers", "lfx.helpers.flow", "lfx.custom.custom_component.custom_component"]
    put(_FUNCTIONS, names, later=["langflow.helpers.flow", "lfx.base.tools.run_flow"])


async def get_flow_by_id_or_name(
    *, user_id: Any = None, flow_id: Any = None, flow_name: str | None = None
) -> Data | None:
    """A sibling's export, by its id and then by its name."""
    source = _find(flow_id, flow_name)
    if source is None:
        return None
    await load_needed_by_run(source)
    return _data(source)


async def list_flows(*, user_id: Any = None) -> list[Data]:
    """Every flow of the registry."""
    return [_data(source) for source in _state().siblings.values()]


async def list_flows_by_flow_folder(*, user_id: Any = None, flow_id: Any = None, **more: Any) -> list[Data]:
    """Every flow of the registry: its folder is one project."""
    return await list_flows()


async def load_flow(
    user_id: Any = None, flow_id: Any = None, flow_name: str | None = None, tweaks: Mapping[str, Any] | None = None
) -> Graph:
    """A child's graph, with its parent's values put into its fields."""
    source = _find(flow_id, flow_name)
    if source is None:
        raise ValueError(f"no flow {flow_name or flow_id!r} among the registered flows")
    await load_needed_by_run(source)
    payload = _payload(source)
    if tweaks:
        from lfx.processing.process import process_tweaks  # noqa: PLC0415  heavy, and only legacy components come here

        payload = process_tweaks(payload, dict(tweaks), caller_supplied=False)
    return Graph.from_payload(
        payload,
        flow_id=flow_uuid(source.export, route=source.route),
        flow_name=str(source.export.get("name") or source.route),
        user_id=str(user_id),
    )


async def run_flow(  # noqa: PLR0917  the engine's own signature
    inputs: Any = None,
    tweaks: Mapping[str, Any] | None = None,
    flow_id: Any = None,
    flow_name: str | None = None,
    output_type: str | None = "chat",
    user_id: Any = None,
    run_id: Any = None,
    session_id: str | None = None,
    graph: Any = None,
    execution_principal: Any = None,
) -> Any:
    """Run a child flow within the current run."""
    if _DEPTH.get() >= MAX_DEPTH:
        raise ValueError(f"flows run each other more than {MAX_DEPTH} deep; does {flow_name or flow_id!r} run itself?")
    graph = graph or await load_flow(user_id, flow_id, flow_name, tweaks)
    state = _state()
    if session_id:
        graph.session_id = session_id
    graph.user_id = str(user_id)
    if execution_principal is not None:
        graph.execution_principal = execution_principal
    raise_if_nested_hitl_unsupported(graph)
    child = _find(graph.flow_id, flow_name)
    bind_graph(graph, state, within=str(child.export.get("name") or child.route) if child else flow_name)
    given = [inputs] if isinstance(inputs, dict) else list(inputs or [])
    token = _DEPTH.set(_DEPTH.get() + 1)
    try:
        return await graph.arun(
            [{"input_value": one.get("input_value")} for one in given],
            inputs_components=[one.get("components", []) for one in given],
            types=[one.get("type", "chat") for one in given],
            outputs=[v.id for v in graph.vertices if _wanted(v, output_type)],
            fallback_to_env_vars=False,
        )
    finally:
        _DEPTH.reset(token)


@contextlib.asynccontextmanager
async def scoped_model_provider_policy_for_target_flow(**_about: Any) -> AsyncIterator[None]:
    """No policy beyond the parent's own."""
    yield None


async def get_user_is_superuser(_user_id: Any) -> bool:
    """There are no users here."""
    return False


def _wanted(vertex: Any, output_type: str | None) -> bool:
    if output_type == "debug":
        return True
    return bool(vertex.is_output and (output_type in ("any", "all", None) or output_type in vertex.id.lower()))


def _find(flow_id: Any, flow_name: str | None) -> FlowSource | None:
    return find_child(_state().siblings, flow_id=str(flow_id or ""), flow_name=str(flow_name or ""))


def _payload(source: FlowSource) -> dict[str, Any]:
    """The child's graph JSON, with its empty key fields bound where the run has the variable."""
    source = family.prepared(source)
    data = family.payload(source)
    known = _state().variables
    bind(data, {k: v for k, v in standard_bindings(data, catalog.installed()).items() if v in known})
    set_streaming(data, wanted=False)
    return data


def _data(source: FlowSource) -> Data:
    export = source.export
    return Data(
        data={
            "id": flow_uuid(export, route=source.route),
            "name": export.get("name") or source.route,
            "description": export.get("description") or "",
            "data": _payload(source),
            "updated_at": None,
        }
    )


def _state() -> RunState:
    state = CURRENT.get()
    if state is None:
        raise ValueError("flows can be looked up only while a flow runs")
    return state


_FUNCTIONS = (
    *(get_flow_by_id_or_name, list_flows, list_flows_by_flow_folder, load_flow, run_flow),
    *(scoped_model_provider_policy_for_target_flow, get_user_is_superuser),
)
