"""The threads in which blocking components run. They are every run's: no component can end or replace them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

THREADS_PER_RUN = 4
"""A run may hold several threads: parallel sync components, and one per token or message that is delivered."""


_USERS = "headrace_run_threads"
"""Where a loop has its engines' RunThreads, in the order in which they came."""


class _Pool(ThreadPoolExecutor):
    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As usual; but StopIteration, which no future can carry to who awaits it, becomes RuntimeError (PEP 479)."""
        return super().submit(_carried, function, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing: a component may find this pool as the loop's own."""

    def end(self) -> None:
        """Take no more work; threads of blocking components are not waited for."""
        super().shutdown(wait=False, cancel_futures=True)


class RunThreads:
    """An event loop's default executor while an engine uses it, and while others do that came before or after it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, concurrency: int) -> None:
        """Have room for ``concurrency`` runs of blocking components that do not wait for each other."""
        self.loop = loop
        self.resize(concurrency=concurrency)
        vars(loop).setdefault(_USERS, []).append(self)
        # What is set on the loop itself goes before its class's own.
        vars(loop)["shutdown_default_executor"] = _ended
        vars(loop)["set_default_executor"] = _ignored

    def resize(self, *, concurrency: int) -> None:
        """Another number of runs from now on. What runs in a thread already goes on there."""
        self._pool = _Pool(max_workers=max(32, THREADS_PER_RUN * concurrency), thread_name_prefix="component")
        type(self.loop).set_default_executor(self.loop, self._pool)

    def let_go(self) -> None:
        """Give the loop the pool of another engine that uses it, or one of its own.

        It goes on without engines, too, and needs threads for look-ups of hosts at least.
        """
        users: list[RunThreads] = vars(self.loop)[_USERS]
        users.remove(self)
        if users:
            type(self.loop).set_default_executor(self.loop, users[-1]._pool)
        else:
            for name in ("shutdown_default_executor", "set_default_executor", _USERS):
                vars(self.loop).pop(name, None)
            self.loop.set_default_executor(ThreadPoolExecutor())
        self._pool.end()


def _carried(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError("a component raised StopIteration") from error


async def _ended(*_: object, **__: object) -> None:
    """In the place of the loop's own, which lets no function run in a thread from then on."""


def _ignored(executor: Executor) -> None:
    """In the place of the loop's own: what a component brings is no place for other runs."""
