"""How tables are written as text is each run's own matter. Loads pandas; loaded by LangflowEngine.prepare only.

pandas keeps in options of the whole process how it writes a table. The engine changes one for each table that it shows
a model, an agent's tool result for one, and changes it back. Of two runs that write at the same time, one would have
its cells cut off after fifty characters, and the option could stay changed for good. So of the ``display`` options,
what ``pd.option_context`` changes holds for its context alone, and what a run's components set for their run alone.
Nothing is locked: a table may take long to write, its cells may wait for other tables, and a process may fork.

A thread that did not inherit the context has the process's options, and changes those.
"""

from __future__ import annotations

import functools
import importlib
from contextvars import ContextVar
from typing import Any

import structlog

from runtime.engine.accelerators.base import Target
from runtime.engine.state import CURRENT

log = structlog.get_logger("headrace.engine")

_OWN = "display."
"""How the options begin that are kept apart. The others change more of pandas than its texts."""

_TARGETS = tuple(
    Target("pandas._config.config", name, frozenset({known}))
    for name, known in (
        ("_get_root", "1b34c9264fa777bc"),
        ("_get_option", "790663c61c7bbbac"),
        ("_set_option", "bae86e54efe395b8"),
        ("_get_single_key", "1a48298e4b12384b"),
        ("option_context", "5edc325010b416dd"),
    )
)
"""What all reading and writing of options goes through, and relies on here."""

_blocks: ContextVar[tuple[dict[str, Any], ...]] = ContextVar("headrace_pandas_options", default=())
"""The options of each ``option_context`` that the current context is in, the innermost last. Never changed in place."""


class _Root:
    """An option as the current context has it, in the place of the dictionary that holds the process's."""

    __slots__ = ("_key", "_plain")

    def __init__(self, key: str, plain: dict[str, Any]) -> None:
        self._key = key
        self._plain = plain

    def __getitem__(self, name: str) -> Any:
        key = self._key
        for block in reversed(_blocks.get()):
            if key in block:
                return block[key]
        state = CURRENT.get()
        if state is not None and key in state.table_options:
            return state.table_options[key]
        return self._plain[name]

    def __setitem__(self, name: str, value: Any) -> None:
        key, blocks = self._key, _blocks.get()
        for at in range(len(blocks) - 1, -1, -1):
            if key in blocks[at]:  # the block's end undoes it, as it would without us
                _blocks.set((*blocks[:at], {**blocks[at], key: value}, *blocks[at + 1 :]))
                return
        state = CURRENT.get()
        if state is None:
            self._plain[name] = value
        else:
            state.table_options[key] = value


def install() -> None:
    """Put the functions in place. May be repeated. Leaves a pandas whose options work another way as it is."""
    changed = [target.name for target in _TARGETS if target.found not in target.known]
    if changed:
        log.warning("tables.options_shared", reason=f"not as known in pandas._config.config: {', '.join(changed)}")
    else:
        _put()


@functools.cache
def _put() -> None:
    config: Any = importlib.import_module("pandas._config.config")
    get_root, enter, leave = config._get_root, config.option_context.__enter__, config.option_context.__exit__

    @functools.wraps(get_root)
    def root(key: str) -> tuple[Any, str]:
        plain, name = get_root(key)
        return (_Root(key, plain) if key.startswith(_OWN) else plain), name

    @functools.wraps(enter)
    def enter_block(block: Any) -> None:
        own, others = {}, []
        for pattern, value in block.ops:
            key = config._get_single_key(pattern, silent=False)
            if not key.startswith(_OWN):
                others += [pattern, value]
                continue
            if (validate := config._registered_options[key].validator) is not None:
                validate(value)
            own[key] = value
        block.undo = []
        if others:
            shared = config.option_context(*others)
            enter(shared)
            block.undo = shared.undo
        _blocks.set((*_blocks.get(), own))

    @functools.wraps(leave)
    def leave_block(block: Any, *error: Any) -> None:
        leave(block, *error)
        _blocks.set(_blocks.get()[:-1])

    config._get_root = root
    config.option_context.__enter__ = enter_block
    config.option_context.__exit__ = leave_block
