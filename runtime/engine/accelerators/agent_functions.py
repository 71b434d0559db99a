"""Read the functions of an agent's graph once.

Why: each run builds its agent's graph anew. For every function in it LangGraph reads the bytecode, for graphs within,
the signature, and the types that its annotations name; the functions are new each time, their code is the same.
Safe because: the instructions of a code object do not change; what the names in them stand for is looked up each time.
A signature is kept for functions that have the same code and annotations, all of them texts, and no attributes or
defaults but None, so that there is nothing else that it could tell. The types are kept for functions of LangChain and
LangGraph themselves, whose modules' names do not change; whoever asks gets a dictionary of his own.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Callable, Hashable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, StandIn, Target

MAX_CODES = 1024
_THEIRS = frozenset({"langchain", "langgraph"})
_BYTECODE = "langgraph.pregel._utils"
_CALLABLE = "langgraph._internal._runnable"
_BRANCH = "langgraph.graph._branch"
_STATE = "langgraph.graph.state"


@functools.lru_cache(maxsize=MAX_CODES)
def instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    """Those of a code object, in order."""
    return tuple(dis.get_instructions(code))


class Told:
    """What ``ask`` tells of functions, kept by what it depends on."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self._kept: dict[Hashable, Any] = {}

    def of(self, function: Any, key: Hashable) -> Any:
        """What is told of a function; ``key`` says what it depends on."""
        try:
            return self._kept[key]
        except KeyError:
            told = self._ask(function)
            if len(self._kept) >= MAX_CODES:
                self._kept.clear()
            self._kept[key] = told
            return told


def nature(function: Any) -> Hashable | None:
    """All that a function's signature depends on; None where that may be more."""
    plain = function.__func__ if type(function) is MethodType else function
    if type(plain) is not FunctionType or plain.__dict__ or plain.__kwdefaults__:
        return None
    defaults, annotations = plain.__defaults__ or (), plain.__annotations__
    if getattr(plain, "__type_params__", ()) or any(default is not None for default in defaults):
        return None
    if not all(type(annotation) is str for annotation in annotations.values()):
        return None
    return plain is function, plain.__code__, len(defaults), tuple(annotations.items())


def _is_theirs(function: Any) -> bool:
    """Whether its annotations mean what they mean in a module of theirs."""
    module = sys.modules.get(name := getattr(function, "__module__", None) or "")
    return name.partition(".")[0] in _THEIRS and getattr(function, "__globals__", None) is vars(module)


def _install(patches: Patches) -> None:
    def get_instructions(code: CodeType) -> Iterator[dis.Instruction]:
        return dis.get_instructions(code) if patches.off else iter(instructions(code))

    def make_signature(original: Callable[..., Any]) -> Callable[..., Any]:
        told = Told(original)

        @functools.wraps(original)
        def signature(function: Any, **how: Any) -> Any:
            key = None if how or patches.off else nature(function)
            return original(function, **how) if key is None else told.of(function, key)

        return signature

    def make_hints(original: Callable[..., Any]) -> Callable[..., Any]:
        told = Told(original)

        @functools.wraps(original)
        def get_type_hints(thing: Any, *how: Any, **more: Any) -> Any:
            kept = not (how or more or patches.off) and _is_theirs(getattr(thing, "__func__", thing))
            key = nature(thing) if kept else None
            if key is None:
                return original(thing, *how, **more)
            return dict(told.of(thing, (key, thing.__module__)))  # whose names the annotations are

        return get_type_hints

    def put_callable(module: ModuleType) -> None:
        patches.replace(module, "inspect", lambda it: StandIn(it, signature=make_signature(inspect.signature)))

    def put_graph(module: ModuleType) -> None:
        patches.replace(module, "signature", make_signature)
        patches.replace(module, "get_type_hints", make_hints)

    patches.at_import(
        _BYTECODE,
        lambda module: patches.replace(module, "dis", lambda it: StandIn(it, get_instructions=get_instructions)),
    )
    patches.at_import(_CALLABLE, put_callable)
    patches.at_import(_BRANCH, put_graph)
    patches.at_import(_STATE, put_graph)


AGENT_FUNCTIONS = Accelerator(
    name="agent_functions",
    targets=(
        Target(_BYTECODE, "get_function_nonlocals", frozenset({"29a2e3905ba77a15"})),
        Target(_CALLABLE, "RunnableCallable.__init__", frozenset({"7c8f6ec108ba2dd7"})),
        Target(_BRANCH, "BranchSpec.from_path", frozenset({"131bc51f78a8739f"})),
        Target(_BRANCH, "_get_branch_path_input_schema", frozenset({"b33c13654764dfd2"})),
        Target(_STATE, "_is_field_binop", frozenset({"316f89213e4ac48a"})),
    ),
    install=_install,
    package="langgraph",
)
