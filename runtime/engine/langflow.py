"""The Langflow engine. This module loads nothing of Langflow until ``prepare``: the import takes 5 to 17 s."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from runtime.engine import environment
from runtime.engine.base import ChatHistory, Emit, FlowSource, LoadedFlow, RunOutput, RunRequest
from runtime.errors import EngineError


class LangflowEngine:
    """Loads exported flows with lfx and runs a copy of each per event."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._loading = asyncio.Lock()
        self._siblings: Mapping[str, FlowSource] = {}
        self._loader: Any = None
        self._runner: Any = None

    async def prepare(self, *, concurrency: int) -> None:
        """Import Langflow and make the process ready for it. Repeated calls only resize the thread pool."""
        environment.set_environment()
        self._pool = environment.size_thread_pool(asyncio.get_running_loop(), concurrency=concurrency)
        await asyncio.to_thread(self._import)

    async def load(self, source: FlowSource) -> LoadedFlow:
        """Load a flow in a thread; one at a time, since compiling components shares the engine's module state."""
        if self._loader is None:
            raise EngineError("the engine was not prepared")
        async with self._loading:
            loaded: LoadedFlow = await asyncio.to_thread(
                self._loader.load_template, source, user_id=self._runner.user_id(None)
            )
            return loaded

    async def run(self, flow: LoadedFlow, request: RunRequest, history: ChatHistory, emit: Emit) -> RunOutput:
        """Run a loaded flow once."""
        output: RunOutput = await self._runner.run_flow(flow, request, history, emit)
        return output

    def set_siblings(self, sources: Mapping[str, FlowSource]) -> None:
        """Remember the registry's flows for Run Flow components."""
        self._siblings = dict(sources)

    async def close(self) -> None:
        """Let the thread pool go. Threads of blocking components are not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _import(self) -> None:
        with environment.keep_logging():
            services = importlib.import_module("runtime.engine.services")
            self._loader = importlib.import_module("runtime.engine.loader")
            self._runner = importlib.import_module("runtime.engine.runner")
        services.quiet_engine_log()
        services.set_services()
