"""``headrace gateway``: the process that speaks HTTP."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from runtime.cli.options import RedisUrl
from runtime.cli.output import say

Host = Annotated[
    str | None,
    typer.Option("--host", metavar="HOST", help="Where to listen. Default: 127.0.0.1.", show_default=False),
]
Port = Annotated[
    int | None,
    typer.Option("--port", metavar="PORT", min=0, max=65535, help="Default: 8800; 0: a free one.", show_default=False),
]


def gateway(
    *,
    host: Host = None,
    port: Port = None,
    redis_url: RedisUrl = None,
    or_free: Annotated[bool, typer.Option("--or-free", hidden=True)] = False,
    ready_fd: Annotated[int | None, typer.Option("--ready-fd", hidden=True)] = None,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:
    """Serve HTTP: take events, tell of runs. Any number of gateways may serve one Redis."""
    from runtime.cli.connection import find_url, read_settings
    from runtime.cli.parent import end_with
    from runtime.errors import SettingsError
    from runtime.telemetry import logs

    settings = read_settings()
    given = {name: value for name, value in {"host": host, "port": port}.items() if value is not None}
    settings = settings.model_copy(update={"gateway": settings.gateway.model_copy(update=given)})
    url = find_url(redis_url, settings)
    try:
        from runtime.gateway.server import listen, serve
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"the gateway needs {error.name}, which is not installed here: headrace[gateway]"
        ) from error
    logs.configure(settings.log)
    if parent is not None:
        end_with(parent)
    try:
        listening = listen(settings.gateway.host, settings.gateway.port, or_free=or_free)
    except OSError as error:
        where = f"{settings.gateway.host}:{settings.gateway.port}"
        raise SettingsError(f"the gateway cannot listen on {where}: {error.strerror or error}") from error

    def ready() -> None:
        name, number = listening.getsockname()[:2]
        told = f"http://{f'[{name}]' if ':' in name else name}:{number}"
        if ready_fd is None:
            say(f"ready: {told}")
            sys.stdout.flush()
            return
        with os.fdopen(ready_fd, "w", encoding="utf-8") as pipe:
            pipe.write(told)

    raise typer.Exit(serve(settings, redis_url=url, listening=listening, on_ready=ready))
