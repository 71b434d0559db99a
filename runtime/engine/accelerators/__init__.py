"""The accelerators: what makes a run cheaper than the engine's own, with the same result.

One module each, with its reason and why it is safe. All are on unless a setting, or a route for its own runs, says
otherwise; one that does not know the installed version's text steps aside. See ``base``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import structlog

from runtime.engine.accelerators.agent_events import AGENT_EVENTS
from runtime.engine.accelerators.agent_functions import AGENT_FUNCTIONS
from runtime.engine.accelerators.agent_nodes import AGENT_NODES
from runtime.engine.accelerators.agent_states import AGENT_STATES
from runtime.engine.accelerators.base import Accelerator, Patches
from runtime.engine.accelerators.classes import CLASSES
from runtime.engine.accelerators.client_lookups import CLIENT_LOOKUPS
from runtime.engine.accelerators.component_caches import COMPONENT_CACHES
from runtime.engine.accelerators.container_host import CONTAINER_HOST
from runtime.engine.accelerators.credentials import CREDENTIALS
from runtime.engine.accelerators.debug_texts import DEBUG_TEXTS
from runtime.engine.accelerators.display_text import DISPLAY_TEXT
from runtime.engine.accelerators.ended_graphs import ENDED_GRAPHS
from runtime.engine.accelerators.fork_audits import FORK_AUDITS
from runtime.engine.accelerators.graph_copies import GRAPH_COPIES
from runtime.engine.accelerators.graph_walks import GRAPH_WALKS
from runtime.engine.accelerators.http_clients import HTTP_CLIENTS
from runtime.engine.accelerators.json_copies import JSON_COPIES
from runtime.engine.accelerators.message_blocks import MESSAGE_BLOCKS
from runtime.engine.accelerators.message_dumps import MESSAGE_DUMPS
from runtime.engine.accelerators.model_clients import MODEL_CLIENTS
from runtime.engine.accelerators.model_copies import MODEL_COPIES
from runtime.engine.accelerators.needed_bundles import NEEDED_BUNDLES
from runtime.engine.accelerators.provider_registry import PROVIDER_REGISTRY
from runtime.engine.accelerators.request_bodies import REQUEST_BODIES
from runtime.engine.accelerators.services import SERVICES
from runtime.engine.accelerators.stream_timeouts import STREAM_TIMEOUTS
from runtime.engine.accelerators.tls_contexts import TLS_CONTEXTS
from runtime.engine.accelerators.tool_schemas import TOOL_SCHEMAS
from runtime.engine.accelerators.untraced_calls import UNTRACED_CALLS
from runtime.errors import EngineError

log = structlog.get_logger("headrace.engine")

ALL: tuple[Accelerator, ...] = (
    CLASSES,
    TLS_CONTEXTS,
    CONTAINER_HOST,
    SERVICES,
    JSON_COPIES,
    MODEL_COPIES,
    DISPLAY_TEXT,
    CREDENTIALS,
    HTTP_CLIENTS,
    TOOL_SCHEMAS,
    PROVIDER_REGISTRY,
    REQUEST_BODIES,
    UNTRACED_CALLS,
    AGENT_FUNCTIONS,
    MESSAGE_DUMPS,
    DEBUG_TEXTS,
    AGENT_EVENTS,
    GRAPH_COPIES,
    CLIENT_LOOKUPS,
    ENDED_GRAPHS,
    GRAPH_WALKS,
    AGENT_NODES,
    STREAM_TIMEOUTS,
    MODEL_CLIENTS,
    AGENT_STATES,
    COMPONENT_CACHES,
    MESSAGE_BLOCKS,
    FORK_AUDITS,
    NEEDED_BUNDLES,
)


@dataclass(frozen=True, slots=True)
class Status:
    """How one accelerator stands: on, off by a setting, or aside, with the reason."""

    name: str
    state: Literal["on", "off", "aside"]
    reason: str = ""


def statuses(switches: Mapping[str, bool]) -> list[Status]:
    """How each would stand with these switches and what is installed. Imports nothing of the engine."""
    found = []
    for accelerator in ALL:
        if not switches.get(accelerator.name, True):
            found.append(Status(accelerator.name, "off"))
        elif reason := accelerator.misfit():
            found.append(Status(accelerator.name, "aside", reason))
        else:
            found.append(Status(accelerator.name, "on"))
    return found


class Installed:
    """The accelerators of this process, and of its forks. Its engines share them, one after the other or side by side.

    They stay when an engine closes: what was kept once is the next one's too.
    """

    _now: Installed | None = None

    @classmethod
    def take(cls, switches: Mapping[str, bool]) -> Installed:
        """Install them, or share what is installed. Raises EngineError if it is in use with other switches."""
        if cls._now is not None and cls._now.switches != switches:
            if cls._now._users:
                raise EngineError("another engine of this process uses other accelerators")
            cls._now.undo()
        if cls._now is None:
            cls._now = cls(switches)
        cls._now._users += 1
        return cls._now

    def __init__(self, switches: Mapping[str, bool]) -> None:
        self.switches = dict(switches)
        self._users = 0
        self._patches: list[Patches] = []
        self.statuses = statuses(switches)
        for status in self.statuses:
            if status.state == "on":
                patches = Patches(status.name)
                self._patches.append(patches)
                next(a for a in ALL if a.name == status.name).install(patches)
            elif status.state == "aside":
                log.warning("accelerator.aside", accelerator=status.name, reason=status.reason)

    async def let_go(self) -> None:
        """An engine closes, on its own loop."""
        self._users -= 1
        for patches in self._patches:
            await patches.rest()

    def undo(self) -> None:
        """Put back what Langflow had."""
        Installed._now = None
        while self._patches:
            self._patches.pop().undo()
