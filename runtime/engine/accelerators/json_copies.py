"""Copy a flow's JSON with a copier for JSON.

Why: each run copies the whole flow twice with ``copy.deepcopy``, which keeps account of every object for the sake of
cycles and classes that JSON does not have.
Safe because: the copier copies plain dicts and lists and takes texts, numbers, booleans and None as they are. Anything
else, and what is nested beyond reason, goes to ``copy.deepcopy`` as before. What is copied for every run is kept packed
by ``marshal``, which knows these types exactly and refuses all others; packing and unpacking are the same process's.
"""

from __future__ import annotations

import copy
import marshal
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, StandIn, Target

_ATOMS = frozenset({str, int, float, bool, type(None)})


class NotJSONError(Exception):
    """Something that JSON does not have."""


def copy_json(value: Any) -> Any:
    """A copy that shares nothing that can be changed. Raises NotJSONError, or RecursionError for endless nesting."""
    kind = type(value)
    if kind is dict:
        return {key: item if type(item) in _ATOMS else copy_json(item) for key, item in value.items()}
    if kind is list:
        return [item if type(item) in _ATOMS else copy_json(item) for item in value]
    if kind in _ATOMS:
        return value
    raise NotJSONError


class Packed(dict[str, Any]):
    """JSON that is copied again and again: read, but never changed. Copies are plain dicts."""

    def __init__(self, value: dict[str, Any]) -> None:
        """Raises ValueError for what ``marshal`` does not pack."""
        super().__init__(value)
        self._bytes = marshal.dumps(value)

    def unpack(self) -> dict[str, Any]:
        """A copy that shares nothing that can be changed."""
        made: dict[str, Any] = marshal.loads(self._bytes)  # noqa: S302  made above, in this process
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)


def packed(value: Any) -> Any:
    """``value`` packed, if it is plain JSON; else as it is."""
    try:
        return Packed(value) if type(value) is dict and copy_json(value) == value else value
    except (NotJSONError, RecursionError, ValueError):
        return value


def _install(patches: Patches) -> None:
    def deepcopy(value: Any, memo: dict[int, Any] | None = None) -> Any:
        if type(value) is Packed and not patches.off:
            return value.unpack()
        if type(value) is dict and "nodes" in value and "edges" in value and not patches.off:
            try:
                return copy_json(value)
            except (NotJSONError, RecursionError):
                pass
        return copy.deepcopy(value, memo)

    for module in ("lfx.graph.graph.base", "lfx.graph.graph.utils"):
        patches.replace(patches.module(module), "copy", lambda it: StandIn(it, deepcopy=deepcopy))


JSON_COPIES = Accelerator(
    name="json_copies",
    targets=(
        Target("lfx.graph.graph.base", "Graph._copy_graph", frozenset({"e288a72e97223637"})),
        Target("lfx.graph.graph.utils", "process_flow", frozenset({"82261a7287dc5081"})),
    ),
    install=_install,
)
