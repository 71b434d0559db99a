"""An engine whose start is told of step by step, and whose loads have a deadline.

A load that waits for something is given up at the deadline, and its route is unready; one that holds up the whole
process is left to the supervisor, which has been told what the process is at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog

from runtime.engine.base import ChatHistory, Emit, Engine, FlowSource, LoadedFlow, RunOutput, RunRequest
from runtime.errors import LoadTimeout

log = structlog.get_logger("headrace.worker")

STEP_MARGIN = 2.0
"""Seconds that the supervisor gives a step beyond its limit: where it can be given up, the process does so itself."""

Step = Callable[[str], None]
"""Tells what the process is at; empty: nothing that should end soon."""


class Punctual:
    """Another engine, with ``limit`` seconds for each load. What was given up is refused until its file changes."""

    def __init__(self, engine: Engine, *, limit: float, step: Step, given_up: Iterable[tuple[str, str]] = ()) -> None:
        self._engine = engine
        self._limit = limit
        self._step = step
        self._given_up = set(given_up)
        """Routes and versions."""

    def telling(self, step: Step) -> Punctual:
        """The same engine, which tells another; it knows what was given up before."""
        return Punctual(self._engine, limit=self._limit, step=step, given_up=self._given_up)

    async def prepare(self, *, concurrency: int) -> None:
        """As the engine does; a step without a deadline of its own, for there is nothing without it."""
        self._step("preparing the engine")
        await self._engine.prepare(concurrency=concurrency)
        self._step("")

    async def load(self, source: FlowSource) -> LoadedFlow:
        """As the engine does. Raises LoadTimeout too."""
        this = (source.route, source.version)
        if this in self._given_up:
            raise LoadTimeout(self._words())
        self._step(f"loading the flow {source.route}")
        try:
            async with asyncio.timeout(self._limit) as deadline:
                return await self._engine.load(source)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            log.error("flow.load_given_up", route=source.route, seconds=self._limit)  # noqa: TRY400  a sentence
            self._given_up.add(this)
            raise LoadTimeout(self._words()) from error
        finally:
            self._step("")

    async def run(self, flow: LoadedFlow, request: RunRequest, history: ChatHistory, emit: Emit) -> RunOutput:
        """As the engine does."""
        return await self._engine.run(flow, request, history, emit)

    def set_siblings(self, sources: Mapping[str, FlowSource]) -> None:
        """As the engine does."""
        self._engine.set_siblings(sources)

    async def close(self) -> None:
        """As the engine does."""
        await self._engine.close()

    def _words(self) -> str:
        return (
            f"loading the flow took longer than {self._limit:g} s (HEADRACE_WORKER__START_TIMEOUT) and was given up; "
            "it is tried again when its file changes, and when the worker starts"
        )
