"""lfx as it is where Langflow's server is not installed.

lfx looks whether ``langflow`` can be imported, and then takes its helpers from there, which bring the server's database
models, SQLAlchemy and FastAPI: 3 to 4 s of every start and 93 MB, for a database that a worker does not have. The
engine's functions are the same without. Saved code that imports ``langflow`` itself gets it, and with it whatever
functions of ours belong there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from wrapt.importer import register_post_import_hook

_hooked: set[tuple[str, ...]] = set()


@contextmanager
def without_server() -> Iterator[None]:
    """Let nothing that is imported meanwhile find ``langflow``, unless it has been imported already."""
    if "langflow" in sys.modules:
        yield
        return
    sys.modules["langflow"] = None  # type: ignore[assignment]  # what Python itself keeps for "there is none"
    try:
        yield
    finally:
        if sys.modules.get("langflow") is None:
            sys.modules.pop("langflow", None)


def leave_server_out() -> None:
    """Have lfx look now, ``without_server``: it remembers what it has found first."""
    importlib.import_module("lfx.utils.langflow_utils").has_langflow_memory()


def put(functions: Sequence[Callable[..., Any]], modules: Sequence[str], *, later: Sequence[str] = ()) -> None:
    """Put functions in the place of those of the same names: in ``modules`` now, in ``later`` when they are imported.

    May be repeated.
    """

    def replace(module: Any) -> None:
        for function in functions:
            if hasattr(module, function.__name__):
                setattr(module, function.__name__, function)

    for name in modules:
        replace(importlib.import_module(name))
    for name in later:
        if name in sys.modules:
            replace(sys.modules[name])
        elif (key := (name, *(function.__name__ for function in functions))) not in _hooked:
            _hooked.add(key)
            register_post_import_hook(replace, name)


def install() -> None:
    """Put the functions in place. May be repeated."""
    put((emit_build_start_event, emit_vertex_build_event), ["lfx.graph.utils", "lfx.graph.vertex.base"])


async def emit_build_start_event(flow_id: Any, vertex_id: str) -> None:
    """Nothing: an editor would listen, at the server. The engine's own would load that to find nobody there."""


async def emit_vertex_build_event(**event: Any) -> None:
    """Nothing, as above."""
