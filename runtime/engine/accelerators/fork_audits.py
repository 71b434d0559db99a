"""Ask whether a fork is safe where something forks, not at each step that Python audits.

Why: the engine imports filelock, which has a function of its own called for every event that Python audits, so that it
can refuse a fork while one of its locks changes hands. Each ``id()``, frame, file and socket is such an event, and
there are thousands of them in a run: a tenth of its cost.
Safe because: it is the same function that refuses, with the same error, asked by all that Python forks with. Such a
function cannot be taken back once it is added, so this one is not added while the engine is imported; where filelock
was imported before, or this is undone, Python calls it as ever. It is the whole process's: a route cannot switch that
off for itself.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target

_NAME = "fork_audits"
_MODULE = "filelock._api"
_HOOK = "_audit_fork_safety"
_FORKS = (
    ("os", "fork", "os.fork"),
    ("os", "forkpty", "os.forkpty"),
    ("posix", "fork", "os.fork"),
    ("posix", "forkpty", "os.forkpty"),
    ("subprocess", "_fork_exec", "_posixsubprocess.fork_exec"),
    ("_posixsubprocess", "fork_exec", "_posixsubprocess.fork_exec"),
)
"""The functions with which Python forks, and the events that they audit."""

_Hook = Callable[[str, tuple[Any, ...]], None]

_kept: list[_Hook] = []
"""filelock's function, where it was not added."""


@contextmanager
def without_hook(switches: Mapping[str, bool]) -> Iterator[None]:
    """Keep filelock's function from being added while the engine is imported, where this accelerator is on."""
    if not switches.get(_NAME, True) or FORK_AUDITS.misfit() is not None:
        yield
        return
    add = sys.addaudithook

    def take(hook: _Hook) -> None:
        if (getattr(hook, "__module__", None), getattr(hook, "__name__", None)) == (_MODULE, _HOOK):
            _kept.append(hook)
        else:
            add(hook)

    sys.addaudithook = take
    try:
        try:
            yield
        finally:
            sys.addaudithook = add
    except BaseException:
        _give_back()
        raise


def _give_back() -> None:
    while _kept:
        sys.addaudithook(_kept.pop())


def _install(patches: Patches) -> None:
    patches.at_undo(_give_back)
    for hook in _kept:
        for module, name, event in _FORKS:
            patches.replace(importlib.import_module(module), name, functools.partial(_asking, hook, event))


def _asking(hook: _Hook, event: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fork(*arguments: Any) -> Any:
        hook(event, ())
        return original(*arguments)

    return fork


FORK_AUDITS = Accelerator(
    name=_NAME,
    targets=(
        Target(_MODULE, "_audit_fork_safety", frozenset({"90ae7a4730edf710"})),
        Target(_MODULE, "_register_fork_hooks", frozenset({"2f4e8f9ea75c58c8"})),
    ),
    install=_install,
    package="filelock",
)
