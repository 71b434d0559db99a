"""``headrace health``: the worker's probes for platforms that run a command instead of asking over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from runtime.cli.output import FAILED, note, say


def health(
    *,
    ready: Annotated[bool, typer.Option("--ready", help="Ask whether it reads now, not whether it lives.")] = False,
    url: Annotated[
        str | None, typer.Option("--url", help="The worker's probe address. Default: from HEADRACE_WORKER__PROBE_PORT.")
    ] = None,
) -> None:
    """Ask a worker on this machine whether it lives: 0 yes, 1 no, with the reasons."""
    import json
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    address = f"{url or _address()}/{'readyz' if ready else 'livez'}"
    if not address.startswith(("http://", "https://")):
        raise typer.BadParameter(f"{address} is not an http address")
    try:
        with urlopen(address, timeout=5) as answer:  # noqa: S310  only http and https get here
            body = answer.read()
    except HTTPError as error:
        body = error.read()
    except (URLError, OSError) as error:
        note(f"headrace: no worker answers at {address}: {getattr(error, 'reason', error)}")
        raise typer.Exit(FAILED) from None
    told = json.loads(body)
    if told["ok"]:
        say("ok")
        return
    for reason in told["reasons"]:
        note(reason)
    raise typer.Exit(FAILED)


def _address() -> str:
    from runtime.cli.connection import read_settings

    port = read_settings().worker.probe_port
    if port is None:
        raise typer.BadParameter(
            "no probe port is known; set HEADRACE_WORKER__PROBE_PORT for worker and command, or --url"
        )
    return f"http://127.0.0.1:{port}"
