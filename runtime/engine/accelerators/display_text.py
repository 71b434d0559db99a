"""Leave the text out that only the editor shows.

Why: for each chat or text component the engine writes what it built as YAML, 1 to 1.5 ms, for a panel of the editor.
Safe because: the text goes into ``VertexBuildResult.params`` and nowhere else, which only a browser reads.
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


DISPLAY_TEXT = Accelerator(
    name="display_text",
    targets=(
        Target("lfx.graph.vertex.vertex_types", "InterfaceVertex.built_object_repr", frozenset({"b1c2aa4272b9fbd5"})),
        Target("lfx.graph.graph.base", "Graph.build_vertex", frozenset({"874af30cbf0e923a"})),
    ),
    install=_install,
)
