"""One run of a loaded flow. Imports lfx; loaded by LangflowEngine.prepare only."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from lfx.graph.exceptions import GraphPausedException
from lfx.schema.dotdict import dotdict
from lfx.services.variable.request_scope import (
    activate_no_env_fallback,
    activate_request_variables,
    reset_no_env_fallback,
    reset_request_variables,
)
from lfx.utils.env_var_security import is_protected_env_var
from lfx.utils.flow_validation import is_protected_tweak_field

from runtime.engine import catalog, preflight
from runtime.engine.accelerators.base import OFF
from runtime.engine.base import ChatHistory, Emit, FlowSource, RunOutput, RunRequest
from runtime.engine.bindings import variables_of_providers
from runtime.engine.bundles import load_providers
from runtime.engine.edits import Edit, Fields
from runtime.engine.faults import Circumstances, classify, masker
from runtime.engine.files import event_files
from runtime.engine.heap import Heap
from runtime.engine.inputs import RunInput, read_inputs
from runtime.engine.loader import Template
from runtime.engine.memory import ChatOverlay
from runtime.engine.observe import Observer
from runtime.engine.oldchat import make_blocking
from runtime.engine.outputs import read_result
from runtime.engine.pauses import Checkpoints, Saved, paused, read_saved, resumed, watch
from runtime.engine.remains import leave
from runtime.engine.state import CURRENT, ROOTS, RunState
from runtime.engine.success import check_success
from runtime.engine.tables import unset_cells
from runtime.engine.tweaks import chosen_providers, read_tweaks
from runtime.errors import Fault, FlowUnready, RouteFault
from shared_models.dead_letter import ErrorInfo

_TENANTS = uuid.UUID("0b6a7e0c-9d1f-5c7e-8a43-3f5b6a0f7f11")


def user_id(tenant: str | None) -> str:
    """The engine's user for a tenant: it must be a UUID, and the same on every worker."""
    return str(uuid.uuid5(_TENANTS, tenant or ""))


async def run_flow(
    template: Template,
    request: RunRequest,
    history: ChatHistory,
    emit: Emit,
    *,
    siblings: Mapping[str, FlowSource],
    saved: Saved | None = None,
    loading: asyncio.Lock,
    heap: Heap,
) -> RunOutput:
    """Run ``template`` once for ``request``. Raises a Fault or RunPaused; nothing else of the run outlives it.

    ``saved`` is what ``request.resume`` holds of a run that waited. ``loading`` is held while components are made anew.
    ``heap`` is told of graphs that are left as they were.
    """
    inputs = read_inputs(template.export, request)
    fields = read_tweaks(template.export, inputs.tweaks, request.tweaks_allowed, is_protected_tweak_field)
    roots = _roots(template, request)
    for component, files in event_files(template.export, inputs, template.source.files_dir, roots).items():
        fields.setdefault(component, {}).update(files)
    providers = chosen_providers(template.export, fields)
    await _load(providers)
    names = template.requirements.variables | variables_of_providers(providers, catalog.installed())
    variables = preflight.resolve_variables(request, names, is_protected_env_var)
    preflight.stand_in(variables, names, catalog.installed().providers.values())
    tweaked = {(component, name) for component, names in fields.items() for name in names}
    preflight.check(template.requirements, template.source, request, variables=variables.keys(), tweaked=tweaked)
    preflight.check_cells(unset_cells(template.export, variables))
    loop = asyncio.get_running_loop()
    state = RunState(
        flow_id=template.export.flow_id,
        loop=loop,
        chat=ChatOverlay(history, loop, session=inputs.session),
        variables=variables,
        siblings=siblings,
        checkpoints=Checkpoints(),
        observer=Observer(
            emit, masker([value for value in (*variables.values(), *template.secrets) if value != preflight.NO_KEY])
        ),
    )
    if saved is not None:
        state.chat.restore(saved.chat)
        state.checkpoints.blobs.update(saved.blobs)
    return await _Run(template, request, inputs, fields, state, saved=saved, loading=loading, heap=heap).execute()


def _roots(template: Template, request: RunRequest) -> tuple[Path, ...]:
    """The directories whose files a run may read."""
    return template.roots if request.files_root is None else (*template.roots, request.files_root)


class _Run:
    """The steps of a run whose inputs are known."""

    def __init__(
        self,
        template: Template,
        request: RunRequest,
        inputs: RunInput,
        fields: Fields,
        state: RunState,
        *,
        saved: Saved | None,
        loading: asyncio.Lock,
        heap: Heap,
    ) -> None:
        self.template = template
        self.request = request
        self.inputs = inputs
        self.fields = fields
        self.state = state
        self.saved = saved
        self.loading = loading
        self.heap = heap
        self.mask = state.observer.mask
        # A streamed run needs a session to send its messages to; one of its own is never remembered.
        self.session = inputs.session or (request.event_id if request.stream else None)

    async def execute(self) -> RunOutput:
        """Copy, run, read the results."""
        try:
            return await self._execute()
        except BaseException:
            # The error has the graph, and somebody the error.
            self.heap.left_whole()
            raise

    async def _execute(self) -> RunOutput:
        with ExitStack() as scope:
            self._enter(scope)
            try:
                graph = await self._graph()
                await self._arun(graph)
                result = read_result(
                    graph,
                    session=self.inputs.session,
                    order=self.template.export.order,
                    before=self.saved.outputs if self.saved else {},
                )
                check_success(result, mask=self.mask)
            except Fault:
                raise
            except GraphPausedException as pause:
                export = self.template.export
                raise paused(
                    graph,
                    self.state,
                    version=self.template.version,
                    flow={"id": export.flow_id, "name": export.name},
                    session=self.inputs.session,
                ) from pause
            except Exception as error:
                raise classify(error, self._circumstances()) from error
            finally:
                self.state.observer.close()
            leave(graph, self.state, self.heap.left_whole)
        return RunOutput(result, self.state.chat.commits())

    def _enter(self, scope: ExitStack) -> None:
        """Bind everything that is found by context to this run: both channels of variables, files, chat."""
        scope.callback(CURRENT.reset, CURRENT.set(self.state))
        scope.callback(OFF.reset, OFF.set(self.request.without))
        scope.callback(ROOTS.reset, ROOTS.set(_roots(self.template, self.request)))
        scope.callback(reset_request_variables, activate_request_variables(dict(self.state.variables)))
        scope.callback(reset_no_env_fallback, activate_no_env_fallback(disabled=True))

    async def _graph(self) -> Any:
        template = self.template
        if self.inputs.session and template.remembers:
            await self.state.chat.ensure(self.inputs.session)
        if self.saved is not None and self.request.resume is not None:
            async with self.loading:
                graph = await asyncio.to_thread(resumed, self.saved, self.request.resume)
        else:
            graph = template.copy(user_id=user_id(self.request.tenant_id), edit=self._edit())
        for vertex_id, text in self.inputs.texts.items():
            _give(graph.get_vertex(vertex_id), "input_value", text)
        for vertex_id, body in self.inputs.webhooks.items():
            _give(graph.get_vertex(vertex_id), "data", body)
        for vertex_id, kind in template.old_chat.items():
            make_blocking(graph.get_vertex(vertex_id).custom_component, kind, self.state.loop)
        # Without it, both branches of a component that pauses would run, with empty texts.
        watch(graph, self.state)
        graph.persist_messages = bool(self.inputs.session)
        bind_graph(graph, self.state)
        return graph

    def _edit(self) -> Edit:
        template = self.template
        return Edit(template.bindings, template.cells, self.state.variables, self.request.stream, self.fields)

    async def _arun(self, graph: Any) -> None:
        await graph.arun(
            [{}],
            inputs_components=[[]],
            types=["any"],
            outputs=[],
            session_id=self.session,
            fallback_to_env_vars=False,
            event_manager=self.state.observer.events() if self.request.stream else None,
        )
        # What asks in the last layer is not heard by the graph itself.
        await graph.check_and_handle_pause()

    def _circumstances(self) -> Circumstances:
        component_id, name = self.state.observer.failed or (None, None)
        node = self.template.export.by_id.get(component_id) if component_id else None
        mine = self.template.uses.get(component_id or "") or self.template.requirements.variables
        models = [n for n, f in node.fields if f.get("type") == "model"] if node else []
        chosen = any(model in self.fields.get(component_id or "", {}) for model in [*models, "model_name"])
        return Circumstances(
            component_id=component_id,
            component_name=name,
            uses_model=bool(models),
            brought=chosen or bool(self.request.brought & mine),
            brought_files=bool(self.inputs.files or self.fields),
            mask=self.mask,
        )


def began_with(template: Template, request: RunRequest) -> tuple[Saved | None, FlowSource | None]:
    """What was kept of a run that waited, and the flow that it began with where that is not ``template``."""
    if request.resume is None:
        return None, None
    saved = read_saved(request.resume.state)
    if saved.version == template.version:
        return saved, None
    export = {**saved.flow, "data": saved.checkpoint.flow_payload}
    return saved, replace(template.source, version=saved.version, export=export, upgrade=False)


async def _load(providers: frozenset[str]) -> None:
    """Load what brings the providers that an event chose by a tweak; the flow's own are loaded with it."""
    if not providers:
        return
    try:
        await asyncio.to_thread(load_providers, providers)
    except FlowUnready as error:
        raise RouteFault(ErrorInfo(code="package_missing", message=error.message)) from error


def bind_graph(graph: Any, state: RunState, *, within: str | None = None) -> None:
    """Give a graph the run's variables, take the environment away from it, and watch it."""
    graph.context = dotdict({"request_variables": dict(state.variables), "no_env_fallback": True})
    state.observer.watch(graph, within=within)


def _give(vertex: Any, field: str, text: str) -> None:
    vertex.update_raw_params({field: text}, overwrite=True)
    # A field that was bound to a variable would take the event's text for the variable's name.
    vertex.load_from_db_fields = [name for name in vertex.load_from_db_fields if name != field]
