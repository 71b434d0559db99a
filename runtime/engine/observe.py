"""A run's progress: which component started, ended or failed, and the tokens and messages of a streamed run.

Imports lfx; loaded by LangflowEngine.prepare only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from lfx.events.event_manager import EventManager

from runtime.engine.base import Emit
from runtime.engine.plain import plain
from runtime.engine.state import VERTEX
from runtime.engine.swallowed import Swallowed
from shared_models.result import RunEventType


class ComponentExited(RuntimeError):
    """A component called sys.exit, which would have ended the worker."""


class Observer:
    """Watches the components of one run, and remembers which failed first."""

    def __init__(self, emit: Emit, mask: Callable[[str], str]) -> None:
        self._emit = emit
        self.mask = mask
        self.failed: tuple[str, str] | None = None
        """The id and name of the component whose failure ended the run."""
        self._closed = False
        self._events: dict[str, Any] = {}

    def close(self) -> None:
        """Tell nothing more: a token that a thread delivers late must not follow the run's end."""
        self._closed = True
        self._events.clear()  # they refer to their manager, which has them

    def tell(self, kind: RunEventType, data: Mapping[str, Any]) -> None:
        """Emit, while the run goes on."""
        if not self._closed:
            self._emit(kind, data)

    def watch(self, graph: Any, *, within: str | None = None) -> None:
        """Replace the graph's own ``build_vertex``. ``within`` is the flow's name for a flow run by another."""
        inner = graph.build_vertex

        async def build_vertex(vertex_id: str, **more: Any) -> Any:
            vertex = graph.get_vertex(vertex_id)
            name = str(vertex.display_name)
            swallowed = Swallowed(vertex.custom_component)
            about = {"component_id": vertex_id, "component_name": name, **({"flow": within} if within else {})}
            self.tell(RunEventType.COMPONENT_STARTED, about)
            began = time.monotonic()
            building = VERTEX.set(vertex_id)
            try:
                built = await inner(vertex_id=vertex_id, **more)
                swallowed.check(vertex.results)
            except (SystemExit, KeyboardInterrupt) as error:
                # Let through, it would stop the event loop and every run on it.
                self._fail(about, within)
                raise ComponentExited(f"component {name!r} ({vertex_id}) called sys.exit({error})") from error
            except BaseException:
                self._fail(about, within)
                raise
            finally:
                VERTEX.reset(building)
            self.tell(RunEventType.COMPONENT_ENDED, {**about, "ms": round((time.monotonic() - began) * 1000, 1)})
            return built

        graph.build_vertex = build_vertex

    def events(self) -> Any:
        """An event manager for a streamed run, whose tokens and messages are emitted."""
        manager = EventManager(_Sink(self))
        for name, kind in (("on_token", "token"), ("on_message", "add_message")):
            manager.register_event(name, kind)
        self._events = manager.events
        return manager

    def _fail(self, about: Mapping[str, Any], within: str | None) -> None:
        self.tell(RunEventType.COMPONENT_FAILED, about)
        if within is None and self.failed is None:
            self.failed = (about["component_id"], about["component_name"])


class _Sink:
    """What the engine takes for a queue. It delivers on the run's loop, so what is emitted is emitted there."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._told: set[str] = set()

    def put_nowait(self, item: tuple[str, bytes, float]) -> None:
        event = json.loads(item[1])
        data = event.get("data") or {}
        if event.get("event") == "token":
            text = self._observer.mask(str(data.get("chunk") or ""))
            self._observer.tell(RunEventType.TOKEN, {"text": text, "message_id": data.get("id")})
        else:
            self._message(data)

    def _message(self, data: Mapping[str, Any]) -> None:
        # The same message comes two or three times: partial, complete, with its usage.
        state = (data.get("properties") or {}).get("state")
        message_id, text = str(data.get("id") or ""), data.get("text")
        if state == "partial" or not isinstance(text, str) or message_id in self._told:
            return
        self._told.add(message_id)
        told = {
            "message_id": message_id,
            "sender": data.get("sender"),
            "sender_name": data.get("sender_name"),
            "text": self._observer.mask(text),
        }
        self._observer.tell(RunEventType.MESSAGE, plain(told))
