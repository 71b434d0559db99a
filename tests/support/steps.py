"""An engine whose runs take steps, each of which the test sees and lets go."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from runtime.engine.base import ChatHistory, Emit, LoadedFlow, RunOutput, RunRequest
from runtime.engine.echo import EchoEngine
from shared_models.result import RunEventType, RunResult


class StepEngine(EchoEngine):
    """``{"steps": n}``: so many components, each of which waits for ``go`` if the payload says ``{"wait": true}``.

    A streamed run tells ``tokens`` tokens in each.
    """

    def __init__(self) -> None:
        self.begun: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.go = asyncio.Event()
        self.effects: list[tuple[str, int]] = []
        self.streams: list[bool] = []

    async def run(self, flow: LoadedFlow, request: RunRequest, history: ChatHistory, emit: Emit) -> RunOutput:
        payload: dict[str, Any] = dict(request.payload)
        self.streams.append(request.stream)
        self.begun[request.event_id].set()
        for n in range(int(payload.get("steps", 1))):
            about = {"component_id": f"c-{n}", "component_name": "Step"}
            emit(RunEventType.COMPONENT_STARTED, about)
            for token in range(int(payload.get("tokens", 0)) if request.stream else 0):
                emit(RunEventType.TOKEN, {"text": f"{token} ", "message_id": f"m-{n}"})
                await asyncio.sleep(0)
            if payload.get("wait"):
                await self.go.wait()
            await asyncio.sleep(float(payload.get("sleep", 0)))
            self.effects.append((request.event_id, n))
            emit(RunEventType.COMPONENT_ENDED, {**about, "ms": 1.0})
        return RunOutput(RunResult(text="done"))
