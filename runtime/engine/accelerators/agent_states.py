"""Make the types of an agent's state once.

Why: each run's agent has three types made of the state that its parts ask for: classes, which refer to themselves, so
that only the garbage collector frees them, and of which LangGraph reads the fields anew.
Safe because: they are made of the given types' annotations alone, in their order. Kept are those of types that are
found in their modules by their names, such as LangChain's own, which all runs share as well: not those that a component
defines in each run.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target

_MODULE = "langchain.agents.factory"

MAX_STATES = 64

Types = tuple[type, type, type]


def _stays(schema: Any) -> bool:
    """Whether it is a class that is in its module for good."""
    return isinstance(schema, type) and getattr(sys.modules.get(schema.__module__), schema.__qualname__, None) is schema


def _install(patches: Patches) -> None:
    def make(original: Callable[[list[type]], Types]) -> Callable[[list[type]], Types]:
        @functools.lru_cache(MAX_STATES)
        def kept(*schemas: type) -> Types:
            return original(list(schemas))

        @functools.wraps(original)
        def resolve_schemas(schemas: list[type]) -> Types:
            return original(schemas) if patches.off or not all(map(_stays, schemas)) else kept(*schemas)

        return resolve_schemas

    def put(module: ModuleType) -> None:
        patches.replace(module, "_resolve_schemas", make)

    patches.at_import(_MODULE, put)


AGENT_STATES = Accelerator(
    name="agent_states",
    targets=(
        Target(_MODULE, "_resolve_schemas", frozenset({"dfb0f4aff37182d8"})),
        Target(_MODULE, "_resolve_schema", frozenset({"89beb3f80b4664e1"})),
        Target(_MODULE, "_get_schema_type_hints", frozenset({"2ff5b6e49ba74c38"})),
    ),
    install=_install,
    package="langchain",
)
