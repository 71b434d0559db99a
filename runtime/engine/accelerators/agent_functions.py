"""Read the bytecode of an agent's functions once.

Why: each run builds its agent's graph anew, and LangGraph looks through the bytecode of every function in it for graphs
within; it is the same code each time.
Safe because: what is kept are the instructions of a code object, which do not change; what the names in them stand for
is looked up each time.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target

MAX_CODES = 1024
_MODULE = "langgraph.pregel._utils"


@functools.lru_cache(maxsize=MAX_CODES)
def instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    """Those of a code object, in order."""
    return tuple(dis.get_instructions(code))


class _Dis(ModuleType):
    """Stands in for the ``dis`` module within one module of LangGraph."""

    def __init__(self, patches: Patches) -> None:
        super().__init__("dis")
        self._patches = patches

    def __getattr__(self, name: str) -> Any:
        return getattr(dis, name)

    def get_instructions(self, code: CodeType) -> Iterator[dis.Instruction]:
        """As ``dis.get_instructions``."""
        return dis.get_instructions(code) if self._patches.off else iter(instructions(code))


def _install(patches: Patches) -> None:
    patches.at_import(_MODULE, lambda module: patches.replace(module, "dis", lambda _: _Dis(patches)))


AGENT_FUNCTIONS = Accelerator(
    name="agent_functions",
    targets=(Target(_MODULE, "get_function_nonlocals", frozenset({"29a2e3905ba77a15"})),),
    install=_install,
    package="langgraph",
)
