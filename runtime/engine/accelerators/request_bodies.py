"""Send a chat request as it was made, and without asking again on what machine.

Why: OpenAI's client walks through every body by its types, for fields that have another name or form on the wire: a
twentieth of a run, and more where an agent's tools are in each request. And each new client goes to a thread to ask the
machine its name, for a header.
Safe because: no type of a chat request has such a field, which is looked for in their texts; what is not plain JSON
goes the client's own way; what was not given is left out, and the body is a copy, as there. The machine's answer is the
same for the life of the process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target
from runtime.engine.accelerators.json_copies import NotJSONError, copy_json

_MODULE = "openai.resources.chat.completions.completions"
_CLIENT = "openai._base_client"
_TYPES = "openai.types.chat.completion_create_params"
_RENAMES = "PropertyInfo"
"""What the client's types say such a field with."""

_Fitting = Callable[[Any, Any], dict[str, Any] | None]


def plain_body(data: dict[str, Any], is_given: Callable[[Any], bool]) -> dict[str, Any]:
    """A body without what was not given. Raises NotJSONError and RecursionError for what is no plain JSON."""
    body: dict[str, Any] = copy_json({name: value for name, value in data.items() if is_given(value)})
    return body


def _install(patches: Patches) -> None:
    def put(module: ModuleType) -> None:
        if renaming := _renaming(Path(patches.module("openai.types").__file__ or "").parent):
            raise LookupError(f"{renaming} has fields to rename")
        fitting = functools.partial(_fitting, patches, patches.module("openai._utils").is_given)
        patches.replace(module, "maybe_transform", functools.partial(_maybe, fitting))
        patches.replace(module, "async_maybe_transform", functools.partial(_async_maybe, fitting))

    patches.at_import(_MODULE, put)
    patches.at_import(_CLIENT, functools.partial(_know_platform, patches))


def _know_platform(patches: Patches, client: ModuleType) -> None:
    ask = client.get_platform
    known = functools.cache(ask)

    async def answer() -> Any:
        return known()

    def make(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def asyncify(function: Any) -> Any:
            return answer if function is ask and not patches.off else original(function)

        return asyncify

    patches.replace(client, "asyncify", make)
    known()


def _renaming(types: Path) -> str | None:
    texts = [*types.glob("chat/*param*.py"), *types.glob("shared_params/*.py")]
    return next((path.name for path in texts if _RENAMES in path.read_text(encoding="utf-8")), None)


def _fitting(patches: Patches, is_given: Callable[[Any], bool], data: Any, expected: Any) -> dict[str, Any] | None:
    if patches.off or type(data) is not dict or getattr(expected, "__module__", "") != _TYPES:
        return None
    try:
        return plain_body(data, is_given)
    except (NotJSONError, RecursionError):
        return None


def _maybe(fitting: _Fitting, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(original)
    def maybe_transform(data: Any, expected_type: Any) -> Any:
        body = fitting(data, expected_type)
        return original(data, expected_type) if body is None else body

    return maybe_transform


def _async_maybe(fitting: _Fitting, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(original)
    async def async_maybe_transform(data: Any, expected_type: Any) -> Any:
        body = fitting(data, expected_type)
        return await original(data, expected_type) if body is None else body

    return async_maybe_transform


REQUEST_BODIES = Accelerator(
    name="request_bodies",
    targets=(
        Target("openai._utils._transform", "maybe_transform", frozenset({"4a2d666390a3c113"})),
        Target("openai._utils._transform", "_transform_recursive", frozenset({"277616314f273d17"})),
        Target("openai._utils._transform", "_transform_typeddict", frozenset({"de6a4d38aef4920f"})),
        Target("openai._utils._transform", "async_maybe_transform", frozenset({"3a03d87cc23cae60"})),
        Target("openai._utils._transform", "_async_transform_recursive", frozenset({"8739ce5d500aff1e"})),
        Target("openai._utils._transform", "_async_transform_typeddict", frozenset({"6c99c70f58cebeec"})),
        Target(_CLIENT, "get_platform", frozenset({"5c1ccabc534106d7"})),
        Target("openai._utils._sync", "asyncify", frozenset({"b988f7e38e6b7e59"})),
    ),
    install=_install,
    package="openai",
)
