"""Runs that wait for a person: what is kept of one, and how it goes on. Imports lfx; loaded by LangflowEngine only.

A Human Input, or an agent whose tools need approval, asks the graph to pause; before its next layer the graph takes a
checkpoint of itself and raises. What it leaves out is kept beside it: the agent's own checkpoint, the chat messages so
far, and the outputs, of which a checkpoint keeps only what is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lfx.graph.checkpoint.resume import _unbuild_needed_dropped_producers, resume_graph_with_decision
from lfx.graph.checkpoint.schema import GraphCheckpoint
from lfx.graph.checkpoint.store import CheckpointStore
from pydantic import ValidationError

from runtime.engine.base import Resume, RunPaused
from runtime.engine.inputs import event_fault
from runtime.engine.outputs import read_ended
from runtime.engine.plain import plain
from runtime.engine.state import CURRENT, VERTEX, RunState
from shared_models.chat import ChatCommit, ChatOp
from shared_models.result import Output, Pause, PauseOption

_FORMAT = 1


@dataclass(slots=True)
class Checkpoints:
    """What one run's graph and agents have had kept."""

    graph: Any = None
    blobs: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """Agents' checkpoints, by job, kind and component: to the engine all agents of a run are one, and read each
    other's."""
    asked: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """What is asked, by the component that asks."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A run that waits, read back. ``version`` is that of the flow that it began with, ``flow`` its name and id."""

    version: str
    flow: Mapping[str, Any]
    checkpoint: Any
    blobs: Mapping[tuple[str, str, str], str]
    chat: tuple[ChatCommit, ...]
    outputs: Mapping[str, list[Output]]
    asked: tuple[str, ...]


class RunStore(CheckpointStore):  # type: ignore[misc]  # lfx has no types
    """Keeps what it is given with the run that is current. Agents find it by itself, so there is one for all runs."""

    async def save(self, checkpoint: Any) -> None:
        """Keep the graph's checkpoint; the last counts."""
        if (state := CURRENT.get()) is not None:
            state.checkpoints.graph = checkpoint

    async def load(self, checkpoint_id: str) -> None:
        """Nothing: a graph is resumed from what was kept elsewhere."""

    async def delete(self, checkpoint_id: str) -> None:
        """Nothing to delete."""

    async def load_by_run_id(self, run_id: str) -> None:
        """Nothing."""

    async def list_by_session(self, session_id: str) -> list[Any]:
        """Nothing."""
        return []

    async def save_blob(self, job_id: str, kind: str, blob: str) -> None:
        """Keep an agent's checkpoint."""
        if (state := CURRENT.get()) is not None:
            state.checkpoints.blobs[job_id, kind, VERTEX.get()] = blob

    async def load_blob(self, job_id: str, kind: str) -> str | None:
        """An agent's checkpoint."""
        state = CURRENT.get()
        return None if state is None else state.checkpoints.blobs.get((job_id, kind, VERTEX.get()))


def watch(graph: Any, state: RunState) -> None:
    """Let a graph pause, and keep what each of its components asks: of several in one layer it would know the last."""
    graph.checkpointing_enabled, graph.checkpoint_store = True, RunStore()
    request_pause = graph.request_pause

    def ask(reason: str = "pause_requested", data: dict[str, Any] | None = None) -> None:
        state.checkpoints.asked[VERTEX.get()] = data or {}
        if not graph.pause_requested:
            request_pause(reason, data)

    graph.request_pause = ask


def paused(graph: Any, state: RunState, *, version: str, flow: Mapping[str, Any], session: str | None) -> RunPaused:
    """The run's state as it waits. Raises EventFault for a pause that nobody can answer."""
    mask = state.observer.mask
    request = (graph.pause_info or {}).get("data") or {}
    pause = _pause(request, mask)
    if not pause.request_id or not pause.allowed:
        raise event_fault("flow_paused", "the flow paused without a question that anybody could answer")
    kept = state.checkpoints
    saved = {
        "format": _FORMAT,
        "version": version,
        "flow": flow,
        "checkpoint": kept.graph.model_dump(mode="json", fallback=lambda _: None),
        "blobs": [[*names, blob] for names, blob in kept.blobs.items()],
        "chat": [[c.session, [[op.op, dict(op.message)] for op in c.ops]] for c in state.chat.commits()],
        "outputs": {
            vertex_id: [output.model_dump() for output in outputs]
            for vertex_id, outputs in read_ended(graph, session=session).items()
            if vertex_id not in kept.asked
        },
        "asked": list(kept.asked),
    }
    return RunPaused(pause, json.dumps(saved).encode(), timeout=_seconds(request))


def _pause(request: Mapping[str, Any], mask: Callable[[str], str]) -> Pause:
    options = [
        PauseOption(action_id=str(option["action_id"]), label=mask(str(option.get("label") or "")))
        for option in request.get("options") or ()
        if isinstance(option, Mapping) and option.get("action_id")
    ]
    calls = json.loads(mask(json.dumps(plain(request.get("action_requests") or []), ensure_ascii=False)))
    return Pause(
        request_id=str(request.get("request_id") or ""),
        kind=str(request.get("kind") or ""),
        prompt=mask(str(request.get("prompt") or "")),
        options=options,
        allowed=[str(action) for action in request.get("allowed_decisions") or (o.action_id for o in options)],
        calls=calls,
        fallback=str(request["fallback_action"]) if request.get("fallback_action") else None,
    )


def _seconds(request: Mapping[str, Any]) -> float | None:
    seconds = request.get("timeout_seconds")
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def read_saved(state: bytes) -> Saved:
    """What ``paused`` has made. Raises EventFault where this engine cannot read it."""
    try:
        saved = json.loads(state)
        if saved["format"] != _FORMAT:
            raise ValueError(f"its format is {saved['format']!r}")
        return Saved(
            version=saved["version"],
            flow=saved["flow"],
            checkpoint=GraphCheckpoint.model_validate(saved["checkpoint"]),
            blobs={(job, kind, vertex): blob for job, kind, vertex, blob in saved["blobs"]},
            chat=tuple(ChatCommit(s, tuple(ChatOp(op, message) for op, message in ops)) for s, ops in saved["chat"]),
            outputs={v: [Output.model_validate(o) for o in outputs] for v, outputs in saved["outputs"].items()},
            asked=tuple(saved["asked"]),
        )
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise event_fault(
            "checkpoint_unreadable", f"the run waited for a decision, and what was kept of it cannot be read: {error}"
        ) from error


def resumed(saved: Saved, resume: Resume) -> Any:
    """The graph as it was, with the decision. Blocks while components are made: call it in a thread."""
    decision = {"action_id": resume.decision.action_id, "values": dict(resume.decision.values)}
    graph = resume_graph_with_decision(saved.checkpoint, RunStore(), resume.request_id, decision)
    for vertex_id in saved.asked:
        # Others of its layer ask again, one at a time: what they have given is no answer.
        graph.get_vertex(vertex_id).built = False
    _unbuild_needed_dropped_producers(graph)
    graph._set_cache_to_vertices_in_cycle()
    graph._set_cache_if_listen_notify_components()
    return graph
