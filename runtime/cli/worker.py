"""``headrace worker``: the process that runs the flows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.options import Flows, RedisUrl

if TYPE_CHECKING:
    from runtime.engine.base import Engine
    from runtime.settings import Settings


def worker(
    *,
    flows: Flows = None,
    redis_url: RedisUrl = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Run only this route. May be given again.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, max=256, help="How many processes run events. Default: 1.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, max=10_000, help="How many events run at once in each. Default: 10."),
    ] = None,
    engine: Annotated[str, typer.Option("--engine", hidden=True)] = "langflow",
    ready_fd: Annotated[int | None, typer.Option("--ready-fd", hidden=True)] = None,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:
    """Run the flows of a folder: read their streams, run an event at a time through them, publish the results.

    Ends cleanly on SIGTERM: what runs is finished within the grace period, the rest is given to other workers.
    """
    from runtime.archive import archive
    from runtime.cli.connection import find_url, read_settings
    from runtime.cli.parent import end_with
    from runtime.settings import take_secrets_away
    from runtime.telemetry import logs, outlet
    from runtime.worker.process import Worker

    settings = with_options(read_settings(), processes=processes, concurrency=concurrency)
    archive.check(settings.archive)
    url = find_url(redis_url, settings)
    outlet.guard()
    logs.configure(settings.log)
    take_secrets_away()
    if parent is not None:
        end_with(parent)
    if ready_fd is not None:
        # Whoever reads the pipe waits for its end: no other process may hold it open.
        held = [ready_fd]
        os.register_at_fork(after_in_child=lambda: os.close(held.pop()) if held else None)
    made = Worker(
        settings,
        redis_url=url,
        flows=(flows or settings.flows).absolute(),
        engine=make_engine(engine, settings),
        only=frozenset(only or ()),
    )
    raise typer.Exit(made.run(lambda report: _tell_ready(report, ready_fd)))


def with_options(settings: Settings, **options: int | None) -> Settings:
    """The settings with the options in the place of the worker's variables."""
    given = {name: value for name, value in options.items() if value is not None}
    return settings.model_copy(update={"worker": settings.worker.model_copy(update=given)})


def make_engine(name: str, settings: Settings) -> Engine:
    """The engine by its name. Raises EngineError where the packages it needs are not installed."""
    if name == "echo":
        from runtime.engine.echo import EchoEngine

        return EchoEngine()
    if name != "langflow":
        raise typer.BadParameter(f"there is no engine {name!r}; there are langflow and echo")
    from importlib.util import find_spec

    from runtime.errors import EngineError

    if find_spec("lfx") is None:
        raise EngineError("Langflow's engine is not installed here; install headrace[worker] (or [langflow] for all)")
    from runtime.engine.langflow import LangflowEngine

    return LangflowEngine(accelerators=dict(settings.engine.accelerators))


def _tell_ready(message: Mapping[str, Any], descriptor: int | None) -> None:
    """Say what runs: to whoever looks, or to `headrace up` at the other end of a pipe."""
    from runtime.cli.ready import say_ready

    if descriptor is None:
        say_ready(message)
        return
    with os.fdopen(descriptor, "w", encoding="utf-8") as pipe:
        json.dump(message, pipe)
