"""The Langflow engine. This module loads nothing of Langflow until ``prepare``: the import takes 5 to 17 s."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from runtime.engine import environment
from runtime.engine.base import ChatHistory, Emit, FlowSource, LoadedFlow, RunOutput, RunRequest
from runtime.engine.environ import EnvironGuard
from runtime.engine.heap import Heap
from runtime.engine.standalone import leave_server_out, without_server
from runtime.engine.threads import RunThreads
from runtime.errors import EngineError, EventFault
from shared_models.dead_letter import ErrorInfo
from shared_models.errors import HeadraceError


class LangflowEngine:
    """Loads exported flows with lfx and runs a copy of each per event.

    ``file_roots`` are directories whose files events may name, beside each flow's own ``NAME.files``. ``accelerators``
    switches single ones off, by name; they are the process's, and stay for the next engine.
    """

    def __init__(self, *, file_roots: Sequence[Path] = (), accelerators: Mapping[str, bool] | None = None) -> None:
        self._switches = dict(accelerators or {})
        self._accelerators: Any = None
        self._file_roots = tuple(file_roots)
        self._threads: RunThreads | None = None
        self._loading = asyncio.Lock()
        self._siblings: Mapping[str, FlowSource] = {}
        self._environ = EnvironGuard()
        self._heap = Heap()
        self._loader: Any = None
        self._runner: Any = None

    async def prepare(self, *, concurrency: int) -> None:
        """Import Langflow and make the process ready for it. Repeated calls only resize the thread pool.

        Raises EngineError where Langflow is not installed, or its own settings name what does not exist.
        """
        environment.set_environment()
        environment.check_environment()
        environment.parse_one_at_a_time()
        loop = asyncio.get_running_loop()
        if self._threads is not None and self._threads.loop is loop:
            self._threads.resize(concurrency=concurrency)
        else:  # the first time, or in a fork
            self._threads = RunThreads(loop, concurrency=concurrency)
        services = await asyncio.to_thread(self._import)
        await services.load_templates_if_restricted()
        self._environ.install()
        self._heap.keep()

    async def load(self, source: FlowSource) -> LoadedFlow:
        """Load a flow in a thread; one at a time, since compiling components shares the engine's module state."""
        if self._loader is None:
            raise EngineError("the engine was not prepared")
        async with self._loading:
            loaded: LoadedFlow = await asyncio.to_thread(
                self._loader.load_template,
                source,
                self._siblings,
                user_id=self._runner.user_id(None),
                roots=self._file_roots,
            )
            self._environ.remember()
            return loaded

    async def run(self, flow: LoadedFlow, request: RunRequest, history: ChatHistory, emit: Emit) -> RunOutput:
        """Run a loaded flow once."""
        self._environ.enter()
        self._heap.run_began()
        try:
            saved, source = self._runner.began_with(flow, request)
            if source is not None:
                flow = await self._load_again(source)
            output: RunOutput = await self._runner.run_flow(
                flow,
                request,
                history,
                emit,
                siblings=self._siblings,
                saved=saved,
                loading=self._loading,
                heap=self._heap,
            )
            return output
        finally:
            # What a load's imports set is remembered when the load is done.
            self._environ.leave(restore=not self._loading.locked())
            self._heap.run_ended()

    async def _load_again(self, source: FlowSource) -> LoadedFlow:
        """The version of a flow that a run began with, which waited while the flow was changed."""
        try:
            return await self.load(source)
        except HeadraceError as error:
            raise EventFault(
                ErrorInfo(
                    code="version_gone",
                    message=f"the run waited for a decision with version {source.version[:12]} of the flow, which does "
                    f"not load any more: {error.message}",
                )
            ) from error

    def set_siblings(self, sources: Mapping[str, FlowSource]) -> None:
        """Remember the registry's flows for Run Flow components."""
        self._siblings = dict(sources)

    async def close(self) -> None:
        """Let the thread pool and os.environ go. Threads of blocking components are not waited for."""
        self._environ.remove()
        self._heap.let_go()
        if self._accelerators is not None:
            installed, self._accelerators = self._accelerators, None
            await installed.let_go()
        if self._threads is not None:
            self._threads.let_go()
            self._threads = None

    def _import(self) -> Any:
        first = self._loader is None
        try:
            with without_server() if first else nullcontext():  # a later time, runs may be under way
                return self._set_up()
        except ModuleNotFoundError as error:
            if error.name not in ("lfx", "langflow"):
                raise
            raise EngineError("Langflow is not installed: pip install 'headrace[langflow]', or [worker]") from error
        finally:
            if first:
                environment.freeze_heap()

    def _set_up(self) -> Any:
        accelerators = importlib.import_module("runtime.engine.accelerators")
        fork_audits = importlib.import_module("runtime.engine.accelerators.fork_audits")
        with environment.keep_logging(), fork_audits.without_hook(self._switches):
            leave_server_out()
            services = importlib.import_module("runtime.engine.services")
            self._loader = importlib.import_module("runtime.engine.loader")
            self._runner = importlib.import_module("runtime.engine.runner")
            replaced = [importlib.import_module(f"runtime.engine.{name}") for name in _REPLACES]
        services.quiet_engine_log()
        services.set_services()
        if self._accelerators is None:
            self._accelerators = accelerators.Installed.take(self._switches)
        for module in replaced:
            module.install()
        return services


_REPLACES = ("chat", "fileaccess", "printing", "standalone", "subflows")
"""Modules that put functions of ours in place of the engine's."""
