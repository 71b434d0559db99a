"""os.environ for runs: what a run's components set there is seen by that run alone, and is gone when it ends. Pure.

Components may set environment variables (keys for a library, say). In a process that serves many runs that would hand
one event's secrets to the next, and to those beside it. While installed, os.environ keeps a run's own changes in the
run's state and shows them only there. Processes that a run starts without an explicit ``env`` get the worker's
environment, without those changes.

Code that goes around os.environ (os.putenv, os.environb, a thread that did not inherit the run's context) changes the
process; ``restore`` undoes it between runs.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import ItemsView, Iterator
from typing import ClassVar

import structlog

from runtime.engine.state import CURRENT

log = structlog.get_logger("headrace.engine")

_plain = type(os.environ)


class _Items(ItemsView[str, str]):
    """The pairs of an environment, decoded in one go: whoever looks for proxies goes through all of them."""

    def __init__(self, environ: _RunEnviron) -> None:
        super().__init__(environ)
        self._environ = environ

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._environ.snapshot().items())


class _RunEnviron(_plain):  # type: ignore[misc, valid-type]  # os._Environ has no public name
    """os.environ with a layer for the current run."""

    def __getitem__(self, key: str) -> str:
        state = CURRENT.get()
        if state is not None and key in state.environ:
            value = state.environ[key]
            if value is None:
                raise KeyError(key)
            return value
        found: str = _plain.__getitem__(self, key)
        return found

    def __setitem__(self, key: str, value: str) -> None:
        state = CURRENT.get()
        if state is None:
            super().__setitem__(key, value)
            return
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"str expected, not {type(value if isinstance(key, str) else key).__name__}")
        state.environ[key] = value

    def __delitem__(self, key: str) -> None:
        state = CURRENT.get()
        if state is None:
            super().__delitem__(key)
            return
        self[key]
        state.environ[key] = None

    def __iter__(self) -> Iterator[str]:
        state = CURRENT.get()
        own = {} if state is None else dict(state.environ)
        yield from (key for key in super().__iter__() if key not in own)
        yield from (key for key, value in own.items() if value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def items(self) -> ItemsView[str, str]:
        """As any mapping's."""
        return _Items(self)

    def snapshot(self) -> dict[str, str]:
        """All variables as they are now."""
        state = CURRENT.get()
        own = {} if state is None else state.environ
        # Each run asks twice, and hardly anything changes it.
        coded, pairs = _Decoded.last
        if coded != self._data:
            coded = dict(self._data)
            pairs = {self.decodekey(key): self.decodevalue(value) for key, value in coded.items()}
            _Decoded.last = coded, pairs
        return {key: value for key, value in (pairs | own).items() if value is not None} if own else dict(pairs)


class _Decoded:
    """The process's variables as they were when they were last asked for, and what they mean."""

    last: ClassVar[tuple[dict[bytes, bytes], dict[str, str]]] = {}, {}


class EnvironGuard:
    """Keeps runs' changes of the environment to themselves. Several of a process share the layer."""

    _all: ClassVar[weakref.WeakSet[EnvironGuard]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._base: dict[bytes, bytes] = {}
        self._told: set[str] = set()
        self._running = 0

    def install(self) -> None:
        """Give os.environ its layer, and remember how it stands."""
        self._all.add(self)
        os.environ.__class__ = _RunEnviron
        self.remember()

    def enter(self) -> None:
        """A run begins. What the host changed while nothing ran stands."""
        if self._running == 0:
            self.remember()
        self._running += 1

    def leave(self, *, restore: bool = True) -> None:
        """A run has ended, and its context has been left."""
        self._running -= 1
        if restore:
            self.restore()

    def remember(self) -> None:
        """Take the environment as it is for what it should be: after a load, whose imports may set variables."""
        self._base = _encoded()

    def restore(self) -> None:
        """Undo what changed the process's own environment. Called outside of runs' contexts, when a run has ended."""
        now = _encoded()
        if now == self._base:
            return
        changed = sorted(name for name in now.keys() | self._base.keys() if now.get(name) != self._base.get(name))
        for name in changed:
            if name in self._base:
                os.environ[os.fsdecode(name)] = os.fsdecode(self._base[name])
            else:
                del os.environ[os.fsdecode(name)]
        fresh = [name for name in map(os.fsdecode, changed) if name not in self._told]
        if fresh:
            self._told.update(fresh)
            log.warning("environment.restored", variables=fresh)

    def remove(self) -> None:
        """Make os.environ the plain one again, when nobody else needs its layer."""
        self._all.discard(self)
        if not self._all:
            os.environ.__class__ = _plain


def _encoded() -> dict[bytes, bytes]:
    """The process's own variables. Not by os.environ's methods, which decode each, twice for every run."""
    data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return dict(data)
