"""Leave the text out that only the editor shows.

Why: for each chat or text component the engine writes what it built as YAML, 1 to 1.5 ms, and each message that a
component gives as indented JSON, for panels of the editor. What cannot be shown, such as a streamed answer, is an error
that refers to itself, and keeps the whole run until the garbage collector finds it.
Safe because: the one text goes into ``VertexBuildResult.params``, the other into an artifact's ``repr``, and nowhere
else, which only a browser reads. A component that writes such a text of its own goes on doing so. The errors are thrown
away by what gets them, but for a debug line.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target


def _install(patches: Patches) -> None:
    def make(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def built_object_repr(vertex: Any) -> Any:
            return original(vertex) if patches.off or not vertex.artifacts else "built"

        return built_object_repr

    patches.replace(patches.module("lfx.graph.vertex.vertex_types").InterfaceVertex, "built_object_repr", make)
    component_class = patches.module("lfx.custom.custom_component.component").Component
    data_class = patches.module("lfx.schema.data").Data
    plain = component_class.custom_repr

    def shows_data(component: Any, result: Any) -> bool:
        """Whether the text would be that of a message or of data, and not one that is there already."""
        if type(component).custom_repr is not plain or "custom_repr" in component.__dict__:
            return False
        shown = component.repr_value
        if isinstance(shown, str) and not shown:
            shown = component.status
        return isinstance(result if shown is None else shown, data_class)

    def make_artifact(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        @functools.wraps(original)
        def _build_artifact(component: Any, result: Any) -> Any:
            if patches.off or not shows_data(component, result):
                return original(component, result)
            component.__dict__["custom_repr"] = _built
            try:
                return original(component, result)
            finally:
                del component.__dict__["custom_repr"]

        return _build_artifact

    patches.replace(component_class, "_build_artifact", make_artifact)

    for module in ("lfx.schema.artifact", "lfx.events.event_manager"):
        patches.replace(patches.module(module), "jsonable_encoder", functools.partial(_make_encoder, patches))


def _make_encoder(patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def jsonable_encoder(value: Any, **how: Any) -> Any:
        try:
            return original(value, **how)
        except ValueError as error:
            met = error.args[0] if error.args and not patches.off else None
            # The error that it is raised from has the frame that has this list of errors.
            if type(met) is list and any(each is error.__cause__ for each in met):
                met.clear()
            raise

    return jsonable_encoder


def _built() -> str:
    return "built"


DISPLAY_TEXT = Accelerator(
    name="display_text",
    targets=(
        Target("lfx.graph.vertex.vertex_types", "InterfaceVertex.built_object_repr", frozenset({"b1c2aa4272b9fbd5"})),
        Target("lfx.custom.custom_component.component", "Component._build_artifact", frozenset({"735b101658f9a0fb"})),
        Target("lfx.custom.custom_component.component", "Component.custom_repr", frozenset({"d4bfa630f4fb2bca"})),
        Target("lfx.graph.graph.base", "Graph.build_vertex", frozenset({"874af30cbf0e923a"})),
        Target("lfx.schema.artifact", "post_process_raw", frozenset({"0c649d0b3175430a"})),
        Target("lfx.events.event_manager", "EventManager.send_event", frozenset({"a13e13d41bfd7bc3"})),
    ),
    install=_install,
)
