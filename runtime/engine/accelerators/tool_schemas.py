"""Make the schema of a tool's arguments once.

Why: an agent makes a pydantic class for each of its tools, twice a run, a millisecond or more each.
Safe because: the key is all that the engine reads of the inputs to make the class, and the class holds no more than
that; one whose fields were changed is not used again. Inputs with a default that can be changed are left to the engine.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from pydantic import BaseModel

from runtime.engine.accelerators.base import Accelerator, Patches, Target

MAX_SCHEMAS = 512
_ATOMS = frozenset({str, int, float, bool, type(None)})


class Schemas:
    """Argument classes by their inputs. Safe for threads."""

    def __init__(self, make: Callable[[list[Any]], type[BaseModel]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, tuple[type[BaseModel], tuple[Any, ...]]] = OrderedDict()

    def get(self, inputs: list[Any]) -> type[BaseModel]:
        """The class for these inputs; raises what making it raises."""
        key = _key(inputs) if isinstance(inputs, list) else None
        if key is None:
            return self._make(inputs)
        with self._lock:
            made, fields = self._made.get(key, (None, ()))
            if made is not None and fields == _fields(made):
                self._made.move_to_end(key)
                return made
        made = self._make(inputs)
        with self._lock:
            self._made[key] = (made, _fields(made))
            while len(self._made) > MAX_SCHEMAS:
                self._made.popitem(last=False)
        return made


def _fields(made: type[BaseModel]) -> tuple[Any, ...]:
    """What a class is made of, to see whether somebody has written to it."""
    return tuple((name, id(field)) for name, field in made.model_fields.items())


def _key(inputs: list[Any]) -> Hashable | None:
    """What the engine reads of the inputs, with the types of what compares equal across types; None: not to be kept."""
    parts = []
    for field in inputs:
        options = getattr(field, "options", None)
        words = (field.name, field.display_name, field.info, field.required, getattr(field, "is_list", None))
        value = field.value if field.required is False else None
        if type(value) not in _ATOMS:
            return None
        chosen = tuple(options) if isinstance(options, list) else None
        parts.append((field.field_type, *words, type(value), value, chosen, tuple(map(type, chosen or ()))))
    return tuple(parts)


def _install(patches: Patches) -> None:
    def make(original: Callable[[list[Any]], type[BaseModel]]) -> Callable[[list[Any]], type[BaseModel]]:
        schemas = Schemas(original)

        @functools.wraps(original)
        def create_input_schema(inputs: list[Any]) -> type[BaseModel]:
            return original(inputs) if patches.off else schemas.get(inputs)

        return create_input_schema

    patches.replace(patches.module("lfx.io.schema"), "create_input_schema", make)


TOOL_SCHEMAS = Accelerator(
    name="tool_schemas",
    targets=(
        Target("lfx.io.schema", "create_input_schema", frozenset({"266a1eb36651b493"})),
        Target("lfx.base.tools.component_tool", "ComponentToolkit.get_tools", frozenset({"64702c6dbe6bdee2"})),
    ),
    install=_install,
)
