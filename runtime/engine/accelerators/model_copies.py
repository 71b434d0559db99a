"""Copy the inputs and outputs of a component field by field.

Why: every component deep-copies its inputs and outputs twice when it is made, half a millisecond each time; nearly all
of their fields are texts and numbers.
Safe because: it does what pydantic's own ``__deepcopy__`` does, with a short way for values that cannot be changed. A
class with a copy of its own kind is left to it.
"""

from __future__ import annotations

import copy
import enum
import functools
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from runtime.engine.accelerators.base import Accelerator, Patches, Target
from runtime.engine.accelerators.json_copies import NotJSONError, copy_json

_ATOMS = frozenset({str, int, float, bool, bytes, type(None)})
_IMMUTABLE = (str, int, float, bool, bytes, type(None), type, enum.Enum, range, FunctionType, BuiltinFunctionType)
"""What ``copy.deepcopy`` gives back as it is."""

_plain_copy = BaseModel.__deepcopy__
_set = object.__setattr__


def copy_model(model: BaseModel, memo: dict[int, Any] | None = None) -> BaseModel:
    """As ``copy.deepcopy(model, memo)``."""
    memo = {} if memo is None else memo
    if id(model) in memo:
        known: BaseModel = memo[id(model)]
        return known
    kind = type(model)
    if kind.__deepcopy__ is not _plain_copy:
        return copy.deepcopy(model, memo)
    made = kind.__new__(kind)
    memo[id(model)] = made
    extra, private = model.__pydantic_extra__, model.__pydantic_private__
    _set(made, "__dict__", {k: v if type(v) in _ATOMS else _copy(v, memo) for k, v in model.__dict__.items()})
    _set(made, "__pydantic_extra__", None if extra is None else copy.deepcopy(extra, memo))
    _set(made, "__pydantic_fields_set__", set(model.__pydantic_fields_set__))
    _set(
        made,
        "__pydantic_private__",
        None
        if private is None
        else {name: _copy(value, memo) for name, value in private.items() if value is not PydanticUndefined},
    )
    return made


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, _IMMUTABLE):
        return value
    if type(value) in (dict, list):
        try:
            return copy_json(value)
        except (NotJSONError, RecursionError):
            return copy.deepcopy(value, memo)
    if isinstance(value, BaseModel):
        return copy_model(value, memo)
    return copy.deepcopy(value, memo)


def _install(patches: Patches) -> None:
    component = patches.module("lfx.custom.custom_component.component")

    def make_template_copy(original: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        @functools.wraps(original)
        def _copy_component_template(items: list[Any]) -> list[Any]:
            if patches.off or not all(isinstance(item, BaseModel) and _copies_plainly(item) for item in items):
                return original(items)
            return [copy_model(item) for item in items]

        return _copy_component_template

    def make_deepcopy(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def deepcopy(value: Any, memo: dict[int, Any] | None = None) -> Any:
            if isinstance(value, BaseModel) and not patches.off:
                return copy_model(value, memo)
            return original(value, memo)

        return deepcopy

    patches.replace(component, "_copy_component_template", make_template_copy)
    patches.replace(component, "deepcopy", make_deepcopy)


def _copies_plainly(model: BaseModel) -> bool:
    return type(model).model_copy is BaseModel.model_copy


MODEL_COPIES = Accelerator(
    name="model_copies",
    targets=(
        Target("lfx.custom.custom_component.component", "_copy_component_template", frozenset({"9d92800d87365650"})),
        Target("lfx.custom.custom_component.component", "Component.map_inputs", frozenset({"bdedfe07814c3d48"})),
        Target("lfx.custom.custom_component.component", "Component.map_outputs", frozenset({"b332a414ea1ab0bb"})),
        Target("pydantic.main", "BaseModel.__deepcopy__", frozenset({"d8e0e6bb1a4f8be4"})),
    ),
    install=_install,
)
