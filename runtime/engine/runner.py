"""One run of a loaded flow. Imports lfx; loaded by LangflowEngine.prepare only."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from lfx.services.variable.request_scope import (
    activate_no_env_fallback,
    activate_request_variables,
    reset_no_env_fallback,
    reset_request_variables,
)

from runtime.engine.base import ChatHistory, Emit, RunOutput, RunRequest
from runtime.engine.inputs import RunInput, event_fault, read_inputs
from runtime.engine.loader import Template
from runtime.engine.outputs import read_result
from runtime.errors import Fault, RunFailed
from shared_models.dead_letter import ErrorInfo
from shared_models.result import RunEventType

_TENANTS = uuid.UUID("0b6a7e0c-9d1f-5c7e-8a43-3f5b6a0f7f11")


def user_id(tenant: str | None) -> str:
    """The engine's user for a tenant: it must be a UUID, and the same on every worker."""
    return str(uuid.uuid5(_TENANTS, tenant or ""))


async def run_flow(template: Template, request: RunRequest, history: ChatHistory, emit: Emit) -> RunOutput:
    """Run ``template`` once for ``request``."""
    inputs = read_inputs(template.export, request)
    graph = template.copy(user_id=user_id(request.tenant_id))
    _set_inputs(graph, inputs)
    _observe(graph, emit)
    await _execute(graph, inputs, dict(request.variables))
    result = read_result(graph, template.export, session=inputs.session)
    if not result.outputs:
        raise event_fault("no_output", "the flow ended without any output")
    return RunOutput(result)


def _set_inputs(graph: Any, inputs: RunInput) -> None:
    for vertex_id, text in inputs.texts.items():
        graph.get_vertex(vertex_id).update_raw_params({"input_value": text}, overwrite=True)
    for vertex_id, body in inputs.webhooks.items():
        graph.get_vertex(vertex_id).update_raw_params({"data": body}, overwrite=True)


async def _execute(graph: Any, inputs: RunInput, variables: Mapping[str, str]) -> None:
    graph.context["request_variables"] = dict(variables)
    graph.context["no_env_fallback"] = True
    scope = activate_request_variables(dict(variables))
    fallback = activate_no_env_fallback(disabled=True)
    try:
        await graph.arun([{}], inputs_components=[[]], types=["any"], outputs=[], session_id=inputs.session)
    except Fault:
        raise
    except Exception as error:
        raise RunFailed(
            ErrorInfo(code="run_failed", message=str(error), exception_type=type(error).__name__, retryable=True)
        ) from error
    finally:
        reset_no_env_fallback(fallback)
        reset_request_variables(scope)


def _observe(graph: Any, emit: Emit) -> None:
    inner = graph.build_vertex

    async def build_vertex(vertex_id: str, **more: Any) -> Any:
        about = {"component_id": vertex_id, "component_name": graph.get_vertex(vertex_id).display_name}
        emit(RunEventType.COMPONENT_STARTED, about)
        try:
            built = await inner(vertex_id=vertex_id, **more)
        except BaseException:
            emit(RunEventType.COMPONENT_FAILED, about)
            raise
        emit(RunEventType.COMPONENT_ENDED, about)
        return built

    graph.build_vertex = build_vertex
