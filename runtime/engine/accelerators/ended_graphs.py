"""Take the graph of an ended run apart, so that it is freed at once.

Why: a graph, its vertices and their components refer to each other; the garbage collector has to look at all that lives
to free them, and stops every run for as long: 50 to 200 ms with 40 under way.
Safe because: nothing is touched where anybody has a part of the graph (see ``remains``, which does it). What it takes
for granted is where a graph and its vertices have the JSON that they were made of.
"""

from __future__ import annotations

from runtime.engine.accelerators.base import Accelerator, Patches, Target


class _Switch:
    """Whether it is installed, and for which routes it is off."""

    patches: Patches | None = None


_switch = _Switch()


def is_on() -> bool:
    """Whether the graph of the current run is to be taken apart when it has ended."""
    return _switch.patches is not None and not _switch.patches.off


def _install(patches: Patches) -> None:
    def undo() -> None:
        _switch.patches = None

    _switch.patches = patches
    patches.at_undo(undo)


ENDED_GRAPHS = Accelerator(
    name="ended_graphs",
    targets=(
        Target("lfx.graph.graph.base", "Graph.__init__", frozenset({"f90f85d118ca7fec"})),
        Target("lfx.graph.vertex.base", "Vertex.__init__", frozenset({"cca205f52d1213eb"})),
        Target("lfx.custom.custom_component.component", "Component.__init__", frozenset({"781cbb212a653670"})),
    ),
    install=_install,
)
