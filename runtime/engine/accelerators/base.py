"""What the accelerators have in common: the check of what they replace, the replacing, the switch per route.

An accelerator puts a cheaper function with the same result in the place of one of the engine's. It was written against
a text that was read, so it is installed only where the installed text is that one: a new version of the engine runs
unaccelerated until somebody has looked, never wrongly.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import structlog
from wrapt.importer import register_post_import_hook

log = structlog.get_logger("headrace.engine")

OFF: ContextVar[frozenset[str]] = ContextVar("headrace_accelerators_off", default=frozenset())
"""The accelerators that the current run's route has switched off."""


@dataclass(frozen=True, slots=True)
class Target:
    """A function or class of a package, by module and qualified name, whose text an accelerator relies on.

    ``known`` holds the fingerprints of the texts that it was written for.
    """

    module: str
    name: str
    known: frozenset[str]

    @property
    def found(self) -> str | None:
        """The fingerprint of the installed text; None where there is none. Imports nothing."""
        return fingerprint(self.module, self.name)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator: its switch's name, what it relies on, and how it is installed.

    ``install`` gets the Patches to make its replacements with. It is called once, after the engine's import.
    """

    name: str
    targets: tuple[Target, ...]
    install: Callable[[Patches], None]
    package: str | None = None
    """What it is for, where that may be missing; then there is nothing to do for it."""

    def misfit(self) -> str | None:
        """Why it cannot be used with what is installed, as a sentence; None where it can."""
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            return None
        for target in self.targets:
            found = target.found
            if found is None:
                return f"{target.module}.{target.name} does not exist in the installed version"
            if found not in target.known:
                return f"{target.module}.{target.name} has changed (its text is {found})"
        return None


class Patches:
    """Replacements made for one accelerator, and the way back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._before: list[tuple[Any, str, Any]] = []
        self._rests: list[Callable[[], Awaitable[None] | None]] = []
        self._undoings: list[Callable[[], None]] = []
        self._undone = False

    @property
    def off(self) -> bool:
        """Whether the current run's route has this accelerator switched off."""
        return self.name in OFF.get()

    def module(self, name: str) -> ModuleType:
        """A module of the engine."""
        return importlib.import_module(name)

    def replace(self, owner: Any, attribute: str, make: Callable[[Any], Any]) -> None:
        """Put ``make(original)`` in the place of ``owner.attribute``."""
        original = owner.__dict__[attribute]
        self._before.append((owner, attribute, original))
        setattr(owner, attribute, make(original))

    def at_import(self, module: str, put: Callable[[ModuleType], None]) -> None:
        """Have ``put`` make its replacements once ``module`` is imported, or at once where it is.

        What ``put`` raises is logged, since it would be raised in the midst of somebody's import, and what it has
        replaced by then is put back.
        """

        def hook(imported: ModuleType) -> None:
            if self._undone:
                return
            before = len(self._before)
            try:
                put(imported)
            except Exception as error:  # noqa: BLE001  whatever it is, the import goes on
                while len(self._before) > before:
                    setattr(*self._before.pop())
                reason = f"{module} is not as it was: {type(error).__name__}: {error}"
                log.warning("accelerator.aside", accelerator=self.name, reason=reason)

        register_post_import_hook(hook, module)

    def at_rest(self, rest: Callable[[], Awaitable[None] | None]) -> None:
        """Have ``rest`` called when an engine closes, to end what belongs to its loop: threads, connections."""
        self._rests.append(rest)

    def at_undo(self, undo: Callable[[], None]) -> None:
        """Have ``undo`` called when the replacements are undone."""
        self._undoings.append(undo)

    async def rest(self) -> None:
        """End what belongs to an event loop. What was kept stays, for the next engine of the process or of a fork."""
        for rest in self._rests:
            if (resting := rest()) is not None:
                await resting

    def undo(self) -> None:
        """Put everything back as it was."""
        self._undone = True
        while self._before:
            setattr(*self._before.pop())
        while self._undoings:
            self._undoings.pop()()


class StandIn(ModuleType):
    """Takes a module's place within one of the engine's; what is in ``own`` takes that of the module's by that name."""

    def __init__(self, module: ModuleType, **own: Any) -> None:
        super().__init__(module.__name__)
        self._module = module
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@cache
def fingerprint(module: str, name: str) -> str | None:
    """The first 16 hex digits of the SHA-256 of the source text of ``name`` in ``module``'s installed file."""
    try:
        node, path = definition(module, name)
    except LookupError:
        return None
    lines = _parsed(path)[1]
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    # Columns count bytes. Not ast.get_source_segment, which splits the whole file for each: half a second for all.
    segment = lines[first : last + 1]
    segment[-1] = segment[-1][: node.end_col_offset]
    segment[0] = segment[0][node.col_offset :]
    return hashlib.sha256(b"".join(segment)).hexdigest()[:16]


def definition(module: str, name: str) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, Path]:
    """The definition of ``name`` in ``module``'s installed file, and that file. Raises LookupError. Imports nothing."""
    path = _source_file(module)
    node: ast.AST | None = None if path is None else _parsed(path)[0]
    for part in name.split("."):
        node = next((child for child in getattr(node, "body", ()) if getattr(child, "name", None) == part), None)
    if path is None or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        raise LookupError(f"{module}.{name} does not exist")
    return node, path


@cache
def _parsed(path: Path) -> tuple[ast.Module, list[bytes]]:
    text = path.read_bytes()
    return ast.parse(text), text.splitlines(keepends=True)


def _source_file(module: str) -> Path | None:
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        base = Path(folder).joinpath(*rest)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None
