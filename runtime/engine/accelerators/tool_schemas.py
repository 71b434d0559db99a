"""Make the schema of a tool's arguments once.

Why: an agent makes a pydantic class for each of its tools, twice a run, a millisecond or more each, and of each another
that tells the model of them, with its JSON schema.
Safe because: the key is all that the engine and LangChain read of the inputs to make the class, and the class holds no
more than that; one that anybody has written to is not used again. Inputs with a default that can be changed are left to
the engine, and so are classes that are not made here. Of the JSON schema everybody gets a copy.
"""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from pydantic import BaseModel

from runtime.engine.accelerators.base import Accelerator, Patches, Target
from runtime.engine.accelerators.json_copies import NotJSONError, copy_json

MAX_SCHEMAS = 512
_ATOMS = frozenset({str, int, float, bool, type(None)})


class _Classes:
    """Classes by what they are made of, the least recently used of which goes first. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, tuple[type[BaseModel], tuple[Any, ...]]] = OrderedDict()
        self._known: weakref.WeakSet[type[BaseModel]] = weakref.WeakSet()

    def __contains__(self, kind: type[BaseModel]) -> bool:
        return kind in self._known

    def get(self, key: Hashable, make: Callable[[], type[BaseModel]]) -> type[BaseModel]:
        """The class for ``key``, made anew where somebody has written to it; raises what making it raises."""
        with self._lock:
            made, written = self._made.get(key, (None, ()))
            if made is not None and _same(made, written):
                self._made.move_to_end(key)
                return made
        made = make()
        with self._lock:
            self._known.add(made)
            self._made[key] = (made, _written(made))
            while len(self._made) > MAX_SCHEMAS:
                self._made.popitem(last=False)
        return made


class Schemas:
    """Argument classes by their inputs, and by these what a model is told of them. Safe for threads."""

    def __init__(self, make: Callable[[list[Any]], type[BaseModel]]) -> None:
        self._make = make
        self._whole = _Classes()
        self._told = _Classes()

    def get(self, inputs: list[Any]) -> type[BaseModel]:
        """The class for these inputs; raises what making it raises."""
        key = _key(inputs) if isinstance(inputs, list) else None
        return self._make(inputs) if key is None else self._whole.get(key, lambda: self._make(inputs))

    def subset(self, make: Callable[..., type[BaseModel]], *args: Any, **kwargs: Any) -> type[BaseModel]:
        """As LangChain's ``_create_subset_model(name, model, field_names, *, descriptions, fn_description)``."""
        name, model, fields = args
        if model not in self._whole or kwargs.keys() - {"fn_description"}:
            return make(*args, **kwargs)

        def make_keeping() -> type[BaseModel]:
            made: Any = make(*args, **kwargs)
            made.model_json_schema = classmethod(_keeping(made.model_json_schema))
            return made  # type: ignore[no-any-return]  # Any, to put a method of ours on it

        return self._told.get((name, model, tuple(fields), kwargs.get("fn_description")), make_keeping)

    def keep_json(self, keep: Callable[[type], None], kind: Any) -> None:
        """As LangChain's ``_patch_json_schema_cache``, which has a class keep its JSON schema, as these do already."""
        if kind not in self._told:
            keep(kind)


def _keeping(make: Callable[..., Any]) -> Callable[..., Any]:
    """A class's ``model_json_schema`` that makes the plain schema once. Everybody gets a copy."""
    kept: list[Any] = []

    def model_json_schema(cls: type, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return make(*args, **kwargs)
        if not kept:
            kept.append(make())
        try:
            return copy_json(kept[0])
        except (NotJSONError, RecursionError):
            return copy.deepcopy(kept[0])

    return model_json_schema


def _written(made: type[BaseModel]) -> tuple[Any, ...]:
    """What is written on a class and its fields, to see whether anybody has written to it since."""
    return dict(vars(made)), repr(made.model_config), repr(made.model_fields)


def _same(made: type[BaseModel], before: tuple[Any, ...]) -> bool:
    """Whether nobody has written to a class since."""
    own, *rest = before
    now, *others = _written(made)
    return rest == others and own.keys() == now.keys() and all(now[name] is own[name] for name in own)


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
    io = patches.module("lfx.io.schema")
    schemas = Schemas(io.create_input_schema)

    def make_schema(original: Callable[[list[Any]], type[BaseModel]]) -> Callable[[list[Any]], type[BaseModel]]:
        @functools.wraps(original)
        def create_input_schema(inputs: list[Any]) -> type[BaseModel]:
            return original(inputs) if patches.off else schemas.get(inputs)

        return create_input_schema

    def make_subset(original: Callable[..., type[BaseModel]]) -> Callable[..., type[BaseModel]]:
        @functools.wraps(original)
        def _create_subset_model(*args: Any, **kwargs: Any) -> type[BaseModel]:
            if patches.off or len(args) != 3:
                return original(*args, **kwargs)
            return schemas.subset(original, *args, **kwargs)

        return _create_subset_model

    def make_keep(original: Callable[[type], None]) -> Callable[[type], None]:
        return functools.wraps(original)(functools.partial(schemas.keep_json, original))

    patches.replace(io, "create_input_schema", make_schema)
    tools = patches.module("langchain_core.tools.base")
    patches.replace(tools, "_create_subset_model", make_subset)
    patches.replace(tools, "_patch_json_schema_cache", make_keep)


TOOL_SCHEMAS = Accelerator(
    name="tool_schemas",
    targets=(
        Target("lfx.io.schema", "create_input_schema", frozenset({"266a1eb36651b493"})),
        Target("lfx.base.tools.component_tool", "ComponentToolkit.get_tools", frozenset({"64702c6dbe6bdee2"})),
        Target("langchain_core.utils.pydantic", "_create_subset_model", frozenset({"414fa0913f93f6be"})),
        Target("langchain_core.utils.pydantic", "_create_subset_model_v2", frozenset({"c2ef14b70e7636c6"})),
        Target("langchain_core.tools.base", "_patch_json_schema_cache", frozenset({"23180d83effaafbc"})),
        Target("langchain_core.tools.base", "BaseTool.tool_call_schema", frozenset({"448c88f43de89ed4"})),
    ),
    install=_install,
)
