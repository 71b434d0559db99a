"""Which packages a component's source imports. Reads the source; runs nothing of it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

_OURS = frozenset({"lfx", "langflow", "langflow_base"})
_GUARDS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


@dataclass(frozen=True, slots=True)
class Imports:
    """Modules by when they are imported: ``needed`` with the component itself, ``optional`` later or never.

    Whole dotted names; the standard library and the engine's own packages are left out.
    """

    needed: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()


@lru_cache(maxsize=1024)
def imports_of(source: str) -> Imports:
    """The imports of a source; none where it cannot be parsed (loading it says why)."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return Imports()
    needed = frozenset(_foreign(_modules(_at_import(tree.body))))
    every = frozenset(_foreign(_modules(ast.walk(tree))))
    return Imports(needed, every - needed)


def _at_import(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """The statements that run when the module is executed and may not fail: nothing guarded or conditional."""
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.ClassDef | ast.With):
            yield from _at_import(statement.body)
        elif isinstance(statement, ast.Try) and not any(_guards(handler) for handler in statement.handlers):
            yield from _at_import([*statement.body, *statement.orelse, *statement.finalbody])


def _guards(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(name).rpartition(".")[2] in _GUARDS for name in names)


def _modules(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def _foreign(modules: Iterable[str]) -> Iterator[str]:
    for module in modules:
        top = module.partition(".")[0]
        if top not in _OURS and top not in sys.stdlib_module_names:
            yield module
