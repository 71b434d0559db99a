"""What a worker needs of an engine, and what an engine is told about a run. Loads nothing of Langflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shared_models.chat import ChatCommit
from shared_models.result import Decision, Pause, RunEventType, RunResult
from shared_models.route import CallbackSpec

LOADING = frozenset({"needed_bundles"})
"""The accelerators that loading a flow uses. All others are a matter of its runs."""


@dataclass(frozen=True, slots=True)
class FlowSource:
    """One flow as it stands on disk.

    ``export`` is the parsed export of this one flow (never a project); it is shared and must not be changed.
    ``version`` is the full SHA-256 of the flow's file, in hex, with the spec's ``upgrade`` mixed in by the registry.
    ``files_dir`` is ``NAME.files`` beside the export, which need not exist.
    """

    route: str
    version: str
    export: Mapping[str, Any]
    path: Path
    files_dir: Path
    upgrade: bool = False
    callback: CallbackSpec | None = None
    """It is no flow, but delivers callbacks as this says."""
    variables: frozenset[str] = frozenset()
    """Names of variables that the route spec provides, or lets events bring."""
    without: frozenset[str] = frozenset()
    """Those of the accelerators in ``LOADING`` that the route has switched off."""


class ChatHistory(Protocol):
    """The committed history of a route's sessions, as the worker hands it to a run (already scoped by tenant)."""

    async def load(self, session: str) -> Sequence[Mapping[str, Any]]:
        """The session's messages, oldest first, each as it was committed."""


Emit = Callable[[RunEventType, Mapping[str, Any]], None]
"""Takes a run's progress. Called on the run's event loop; must not block."""


@dataclass(frozen=True, slots=True)
class Resume:
    """A run that waited goes on: what the engine kept of it (``RunPaused.state``), and how its question was decided."""

    state: bytes
    request_id: str
    decision: Decision


class RunPaused(Exception):
    """The run waits for a person. ``state`` is the engine's own; ``timeout`` is in seconds; None: there is none."""

    def __init__(self, pause: Pause, state: bytes, *, timeout: float | None = None) -> None:
        super().__init__(pause.request_id)
        self.pause = pause
        self.state = state
        self.timeout = timeout


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One execution of a loaded flow.

    ``payload`` is the event's payload. ``input_text`` and ``session_id``, where not None, override what the payload
    says. ``variables`` are the route's and the event's, resolved; ``brought`` names those that came with the event (a
    provider's 401 for one of these is the event's fault). ``tweaks_allowed`` is the route's policy: False, True
    (permissive) or the ``component.field`` names that may be set; an empty tuple means those that the flow declares.
    ``files_root`` is a directory with files that came with the event, which the run alone may read. ``stream`` asks for
    tokens. ``without`` names the accelerators that the route has switched off. ``resume``, of a run
    that waited, has it go on instead of beginning.
    """

    event_id: str
    payload: Mapping[str, Any]
    tenant_id: str | None = None
    session_id: str | None = None
    input_text: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    brought: frozenset[str] = frozenset()
    tweaks_allowed: bool | tuple[str, ...] = False
    attempt: int = 1
    files_root: Path | None = None
    stream: bool = False
    without: frozenset[str] = frozenset()
    resume: Resume | None = None


@dataclass(frozen=True, slots=True)
class RunOutput:
    """A successful execution: its result, and the chat messages that settle commits."""

    result: RunResult
    chat: tuple[ChatCommit, ...] = ()


class LoadedFlow(Protocol):
    """A flow that is ready to run: an immutable template, shared by all runs of this version."""

    @property
    def version(self) -> str:
        """The FlowSource's version."""

    @property
    def webhook(self) -> bool:
        """Whether the whole payload is the flow's data (a Webhook component); control keys are then fields only."""

    @property
    def runs_others(self) -> bool:
        """Whether it runs other flows of the registry: when they change, it is to be loaded again."""


class Engine(Protocol):
    """Loads flows once and runs them per event. Two exist: Langflow and Echo."""

    async def prepare(self, *, concurrency: int) -> None:
        """Make the process ready (environment, services, thread pool). Once, on the loop that will run the flows."""

    async def load(self, source: FlowSource) -> LoadedFlow:
        """Load a flow. Raises FlowUnready (something is missing here) or FlowInvalid (it can never load)."""

    async def run(self, flow: LoadedFlow, request: RunRequest, history: ChatHistory, emit: Emit) -> RunOutput:
        """Run it once, isolated from every other run. Raises EventFault, RouteFault or RunFailed; cancellable.

        Raises RunPaused where the flow asks a person.
        """

    def set_siblings(self, sources: Mapping[str, FlowSource]) -> None:
        """Tell the engine all flows of the registry, by route, for flows that run other flows."""

    async def close(self) -> None:
        """Give back what prepare took."""
