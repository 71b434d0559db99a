"""Leave out the engine's debug lines.

Why: the engine writes each result out in full for lines that its logger then drops, several times a run: a hundredth or
two of a small one, and more the larger its messages are.
Safe because: a worker never tells the engine's debug lines (``services.quiet_engine_log``). What is left out are
statements of their own that do nothing but call ``logger.debug`` or ``adebug``, of functions whose text is known; the
rest is compiled as it is, at its own lines. A value whose ``repr`` fails fails a run no more.
"""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target, definition

_TEXTS = {
    ("lfx.graph.graph.base", "Graph._execute_tasks"): "8f1973f3020193e7",
    ("lfx.graph.graph.base", "Graph._arun_legacy"): "47e1493d57ccf4ca",
    ("lfx.graph.graph.base", "Graph.process"): "b9a38ca902a0def0",
    ("lfx.graph.vertex.base", "Vertex._build"): "71f4a90f236affa6",
    ("lfx.interface.initialize.loading", "instantiate_class"): "62cd63513070f03a",
}
"""The functions that every run calls, with the fingerprints of their texts."""


class _Without(ast.NodeTransformer):
    """Takes the debug lines out."""

    def __init__(self) -> None:
        self.taken = 0

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if not _is_debug(node.value):
            return node
        self.taken += 1
        return ast.copy_location(ast.Pass(), node)


def _is_debug(value: ast.expr) -> bool:
    call = value.value if isinstance(value, ast.Await) else value
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("debug", "adebug")
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "logger"
    )


def without_debug(module: ModuleType, name: str) -> Callable[..., Any]:
    """A function of ``module``, compiled from its text without its debug lines. Raises LookupError if it has none."""
    node, path = definition(module.__name__, name)
    transformer = _Without()
    tree = ast.Module([transformer.visit(copy.deepcopy(node))], type_ignores=[])
    if not transformer.taken:
        raise LookupError(f"{module.__name__}.{name} has no debug lines")
    namespace: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), vars(module), namespace)  # noqa: S102  the engine's own text
    made: Callable[..., Any] = namespace[node.name]
    return made


def _install(patches: Patches) -> None:
    for module_name, name in _TEXTS:
        module = patches.module(module_name)
        owner: Any = module
        *classes, function = name.split(".")
        for part in classes:
            owner = getattr(owner, part)
        patches.replace(owner, function, functools.partial(_choosing, patches, without_debug(module, name)))


def _choosing(patches: Patches, short: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def either(*args: Any, **kwargs: Any) -> Any:
        return (original if patches.off else short)(*args, **kwargs)

    return either


DEBUG_TEXTS = Accelerator(
    name="debug_texts",
    targets=tuple(Target(module, name, frozenset({known})) for (module, name), known in _TEXTS.items()),
    install=_install,
)
