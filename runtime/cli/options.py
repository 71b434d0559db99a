"""Options that several commands share, and how a command runs its coroutine."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

T = TypeVar("T")

RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        metavar="URL",
        help="Redis or Valkey. Else HEADRACE_REDIS__URL, REDIS_URL, or .headrace/redis.url here or above.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Flows = Annotated[
    Path | None,
    typer.Option("--flows", metavar="DIR", help="The folder with the exports. Default: HEADRACE_FLOWS, else flows."),
]
RouteOption = Annotated[str | None, typer.Option("--route", "-r", metavar="ROUTE", help="Only this route.")]


def group(help_text: str) -> typer.Typer:
    """A group of commands, all alike: plain help (a drawn one costs half a second), errors told by main."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
    )


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end. Ctrl-C cancels it, and raises KeyboardInterrupt once it has ended."""
    import asyncio

    return asyncio.run(_interruptible(work))


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    import asyncio
    import signal

    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    task = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(interrupted.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        return task.result()
    while not task.done():
        # A timeout of zero within the Redis client takes a cancellation that comes at its start for its own.
        task.cancel()
        await asyncio.wait({task}, timeout=0.2)
    raise KeyboardInterrupt
