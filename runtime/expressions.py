"""CEL expressions of route specs: checked when a spec is read, evaluated per event.

The language is the Common Expression Language (https://github.com/google/cel-spec), over the variables ``event``,
``payload`` and, after the run, ``output``. Evaluation is bounded: expressions have at most 2 KB and no side effects.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shared_models.errors import HeadraceError

if TYPE_CHECKING:
    from cel import Context, Program

BEFORE_RUN = frozenset({"event", "payload"})
AFTER_RUN = BEFORE_RUN | {"output"}


class ExpressionFailed(HeadraceError):
    """An expression of the route spec could not be evaluated for this event."""

    code = "expression_failed"


@cache
def _library() -> ModuleType:
    """The cel package without its command line, which brings a terminal toolkit: 400 modules and a second of CPU."""
    name = "cel.cli"
    absent = name not in sys.modules
    if absent:
        sys.modules[name] = ModuleType(name)
    try:
        return importlib.import_module("cel")
    finally:
        if absent:
            del sys.modules[name]


@lru_cache(maxsize=4096)
def _program(source: str) -> Program:
    program: Program = _library().compile(source)
    return program


def problem(source: str, allowed: frozenset[str]) -> str | None:
    """What is wrong with an expression, in one sentence; None if nothing is."""
    try:
        program = _program(source)
    except ValueError as error:
        return f"not a CEL expression: {_first_line(error)}"
    # Names that a macro binds (exists(o, ...)) are among the variables too; only a name that CEL itself could not
    # resolve at evaluation is a fault, so probe with the allowed ones bound to dynamic values.
    return _unknown_name(source, set(program.variables()), allowed)


def _unknown_name(source: str, names: set[str], allowed: frozenset[str]) -> str | None:
    bound = set(re.findall(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,", source))
    for name in sorted(names - allowed - bound):
        return f"unknown name {name!r}; an expression may use {', '.join(sorted(allowed))}"
    return None


class Scope:
    """The variables of one event, converted once and used by all of its expressions."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables = dict(variables)
        self._context: Context | None = None

    def with_variable(self, name: str, value: Any) -> Scope:
        """A scope with one variable more."""
        return Scope({**self._variables, name: value})

    def evaluate(self, source: str, *, where: str) -> Any:
        """The expression's value. Raises ExpressionFailed saying ``where`` it stands and what it lacked."""
        if self._context is None:
            self._context = _library().Context(self._variables)
        try:
            return _program(source).execute(self._context)
        except Exception as error:
            detail = f"{type(error).__name__}: {_first_line(error)}"
            raise ExpressionFailed(f"{where}: `{source}` could not be evaluated for this event ({detail})") from error

    def holds(self, source: str, *, where: str) -> bool:
        """Whether a condition holds; anything but a boolean is an ExpressionFailed."""
        value = self.evaluate(source, where=where)
        if not isinstance(value, bool):
            raise ExpressionFailed(f"{where}: `{source}` gave {type(value).__name__}, not true or false")
        return value

    def text(self, source: str, *, where: str) -> str:
        """A string value; numbers and booleans are written out, anything else is an ExpressionFailed."""
        value = self.evaluate(source, where=where)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str | int | float):
            return str(value)
        raise ExpressionFailed(f"{where}: `{source}` gave {type(value).__name__}, not a string")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
