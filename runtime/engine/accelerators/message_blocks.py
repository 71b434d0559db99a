"""Read the blocks of a message without leaving a function that refers to itself.

Why: an agent tells its steps as messages, eight a run, and for each the engine makes an inner function that calls
itself: only the garbage collector frees it.
Safe because: the same steps in the same order, by the engine's own types. pydantic has the validator for good, in the
class and in those under it, so not the validator is replaced but its code; its signature stays.
"""

from __future__ import annotations

import inspect
from types import FunctionType, ModuleType
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target

_MODULE = "lfx.schema.message"
_NAME = "validate_content_blocks"


class _Blocks:
    """Reads blocks with the types that a module of the engine's has."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def read(self, value: Any) -> Any:
        """The blocks of a list, of a text that is one, or of one block's text; anything else as it is."""
        if isinstance(value, str):
            value = self._module.json.loads(value) if value.startswith("[") else [value]
        return [self._one(item) for item in value] if isinstance(value, list) else value

    def _one(self, item: Any) -> Any:
        while isinstance(item, str):
            item = self._module.json.loads(item)
        if isinstance(item, self._module.BaseModel) or not isinstance(item, dict):
            return item
        if "type" not in item:
            # As they were saved by earlier versions.
            if "title" in item and "contents" in item:
                return self._module.ContentBlock.model_validate(item)
            if "text" in item:
                return self._module.TextContent.model_validate(item)
        return self._module._CONTENT_TYPE_ADAPTER.validate_python(item)


def _install(patches: Patches) -> None:
    module = patches.module(_MODULE)
    validator = module.Message.__dict__[_NAME].__func__
    code, more = validator.__code__, validator.__kwdefaults__
    original = FunctionType(code, validator.__globals__, _NAME, validator.__defaults__, validator.__closure__)
    original.__kwdefaults__ = more
    blocks = _Blocks(module)

    def read(cls: Any, value: Any) -> Any:
        return original(cls, value) if patches.off else blocks.read(value)

    def validate(cls: Any, value: Any, *, read: Any) -> Any:
        return read(cls, value)

    def undo() -> None:
        del validator.__signature__
        validator.__code__, validator.__kwdefaults__ = code, more

    validator.__signature__ = inspect.signature(validator)
    validator.__kwdefaults__ = {"read": read}
    validator.__code__ = validate.__code__
    patches.at_undo(undo)


MESSAGE_BLOCKS = Accelerator(
    name="message_blocks",
    targets=(Target(_MODULE, f"Message.{_NAME}", frozenset({"fb92c78a16da7d54"})),),
    install=_install,
)
