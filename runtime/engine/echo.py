"""An engine without Langflow: it answers with its input. For tests of the stream runtime and for measuring it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.engine.base import ChatHistory, Emit, FlowSource, LoadedFlow, RunOutput, RunPaused, RunRequest
from runtime.errors import EventFault, RouteFault, RunFailed
from shared_models.dead_letter import ErrorInfo
from shared_models.result import Output, OutputKind, Pause, PauseOption, RunResult


@dataclass(frozen=True, slots=True)
class EchoFlow:
    """A flow that says back what it is told."""

    version: str
    webhook: bool = False
    runs_others: bool = False


class EchoEngine:
    """Answers with the input. ``{"sleep": seconds}`` or ``{"fail": "event|route|moment"}`` ask for trouble.

    ``{"ask": [{"options": ["yes", "no"], "prompt": ..., "timeout": seconds, "fallback": "no"}, ...]}`` asks a person,
    once for each, and answers with the decisions too.
    """

    async def prepare(self, *, concurrency: int) -> None:
        """Nothing to do."""

    async def load(self, source: FlowSource) -> EchoFlow:
        """Any export will do."""
        return EchoFlow(source.version)

    async def run(self, flow: LoadedFlow, request: RunRequest, history: ChatHistory, emit: Emit) -> RunOutput:
        """The input as the one output."""
        if isinstance(delay := request.payload.get("sleep"), int | float):
            await asyncio.sleep(delay)
        kinds = {"event": EventFault, "route": RouteFault, "moment": RunFailed}
        if kind := kinds.get(str(request.payload.get("fail"))):
            raise kind(ErrorInfo(code="echo_failed", message="the payload asked to fail", retryable=kind is RunFailed))
        text = request.input_text if request.input_text is not None else str(request.payload.get("input_value", ""))
        text = " ".join((text, *_decided(request)))
        output = Output(id="echo", name="Echo", type="Echo", kind=OutputKind.MESSAGE, text=text)
        return RunOutput(RunResult(text=text, outputs=[output]))

    def set_siblings(self, sources: Mapping[str, FlowSource]) -> None:
        """Echo runs no other flows."""

    async def close(self) -> None:
        """Nothing to give back."""


def _decided(request: RunRequest) -> list[str]:
    """The decisions that the payload wants, once all are there. Raises RunPaused for the next one."""
    asks = request.payload.get("ask")
    decided: list[str] = json.loads(request.resume.state) if request.resume else []
    if request.resume:
        decided.append(request.resume.decision.action_id)
    if not isinstance(asks, list) or len(decided) >= len(asks):
        return decided
    ask = asks[len(decided)]
    pause = Pause(
        request_id=f"echo:{len(decided)}",
        prompt=str(ask.get("prompt", "")),
        options=[PauseOption(action_id=action) for action in ask["options"]],
        allowed=ask["options"],
        fallback=ask.get("fallback"),
    )
    raise RunPaused(pause, json.dumps(decided).encode(), timeout=ask.get("timeout"))
