"""The command ``headrace``. Whatever is heavy is imported inside the commands, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from runtime.cli import dlq, doctor, flows, gateway, health, k8s, keys, redis, runs, send, status, up, worker
from runtime.cli.options import group
from runtime.cli.output import FAILED, UNREACHABLE, USAGE, note
from shared_models.errors import HeadraceError

app = group("Runs exported Langflow flows headlessly on Redis Streams.")

app.command("up")(up.up)
app.command("worker")(worker.worker)
app.command("gateway")(gateway.gateway)
app.command("send")(send.send)
app.add_typer(runs.app, name="runs")
app.command("status")(status.status)
app.add_typer(flows.app, name="flows")
app.add_typer(dlq.app, name="dlq")
app.add_typer(keys.app, name="keys")
app.add_typer(k8s.app, name="k8s")
app.command("health")(health.health)
app.command("doctor")(doctor.doctor)
app.command("redis", context_settings=redis.CONTEXT)(redis.redis)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        sys.stdout.write(f"headrace {version('headrace')}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """The entry point of the command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run the command line; its exit code: 0 ok, 1 the thing asked about failed, 2 usage, 3 Redis unreachable."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _invoke(list(arguments))
        sys.stdout.flush()
    except HeadraceError as error:
        return _tell(error)
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code


def _invoke(arguments: list[str]) -> int:
    try:
        typer.main.get_command(app).main(args=arguments, prog_name="headrace")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED if end.code else 0
    return 0


def _tell(error: HeadraceError) -> int:
    if os.environ.get("HEADRACE_LOG__LEVEL", "").lower() == "debug":
        import traceback

        traceback.print_exception(error)
    else:
        note(f"headrace: {error.message}")
    return {"redis_unavailable": UNREACHABLE, "gateway_unavailable": UNREACHABLE, "settings_invalid": USAGE}.get(
        error.code, FAILED
    )
