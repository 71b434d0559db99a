"""``headrace runs``: what became of events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.options import AsJson, Flows, RedisUrl, RouteOption, group, wait_for
from runtime.cli.output import FAILED, note, say, say_json, shorten, table, when

if TYPE_CHECKING:
    from runtime.cli.directory import Directory
    from shared_models.result import RunRecord, RunStatus

app = group("What became of events.")

STATUSES = ("queued", "running", "delayed", "completed", "dead_lettered", "cancelled")


@app.command("show")
def show(
    *,
    event_id: Annotated[str, typer.Argument(metavar="ID", help="The event id.", show_default=False)],
    route: RouteOption = None,
    flows: Flows = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the run of an event. Exits 1 if there is none, or if it was dead-lettered."""
    from runtime.cli.results import failure_of

    record = wait_for(_find(event_id, route, flows, redis_url))
    if as_json:
        say_json(record)
    else:
        _print(record)
    if failure_of(record) and record.status.final:
        raise typer.Exit(FAILED)


@app.command("list")
def list_(
    *,
    route: RouteOption = None,
    status: Annotated[
        str | None, typer.Option("--status", "-s", metavar="STATUS", help=f"One of {', '.join(STATUSES)}.")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="At most so many.")] = 50,
    flows: Flows = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    if status is not None and status not in STATUSES:
        raise typer.BadParameter(f"there is no status {status!r}; there are {', '.join(STATUSES)}")
    records = wait_for(_list(route, status, count, flows, redis_url))
    if as_json:
        say_json(records)
        return
    table(
        ["event", "route", "status", "attempts", "began", "result or error"],
        ([r.event_id, r.route, r.status.value, r.attempts, when(_time(r)), shorten(_gist(r))] for r in records),
        empty="no runs",
    )


async def _find(event_id: str, route: str | None, flows: Path | None, redis_url: str | None) -> RunRecord:
    from runtime.cli.connection import connected, read_settings
    from runtime.cli.directory import Directory, keys_of
    from runtime.errors import RouteNotFound

    settings = read_settings()
    async with connected(redis_url, settings) as broker:
        directory = await Directory.load(broker, flows or settings.flows)
        record = await broker.runs.find([keys_of(r) for r in directory.chosen(route)], event_id)
        if record is None:
            raise RouteNotFound(_unknown(event_id, directory))
        return record


def _unknown(event_id: str, directory: Directory) -> str:
    searched = ", ".join(directory.routes) or "none is registered"
    return f"no run of event {event_id!r} is known (routes searched: {searched}); records are kept for 7 days"


async def _list(
    route: str | None, status: str | None, count: int, flows: Path | None, redis_url: str | None
) -> list[RunRecord]:
    from runtime.cli.connection import connected, read_settings
    from runtime.cli.directory import Directory, keys_of
    from shared_models.result import RunStatus

    settings = read_settings()
    wanted: RunStatus | None = RunStatus(status) if status else None
    async with connected(redis_url, settings) as broker:
        directory = await Directory.load(broker, flows or settings.flows)
        records: list[RunRecord] = []
        for chosen in directory.chosen(route):
            records += await broker.runs.list(keys_of(chosen), count=count, status=wanted)
    return sorted(records, key=_time, reverse=True)[:count]


def _time(record: RunRecord) -> int:
    return record.started_at or record.queued_at or record.ended_at or 0


def _gist(record: RunRecord) -> str:
    from runtime.cli.results import text_of

    if record.dead_letter:
        return f"{record.dead_letter.code}: {record.dead_letter.reason}"
    return text_of(record) if record.result else record.last_error or ""


def _print(record: RunRecord) -> None:
    from runtime.cli.results import text_of

    rows = [
        ("event", record.event_id),
        ("route", record.route),
        ("status", record.status.value),
        ("attempts", record.attempts),
        ("root", record.root_id if record.root_id != record.event_id else ""),
        ("parent", record.parent_id),
        ("duplicate of", record.duplicate_of),
        ("session", record.session_id),
        ("tenant", record.tenant_id),
        ("queued", when(record.queued_at)),
        ("started", when(record.started_at)),
        ("due", when(record.due_at)),
        ("ended", when(record.ended_at)),
        ("worker", record.worker),
        ("version", (record.version or "")[:12]),
        *(("published", f"{p.stream} as {p.event_id}") for p in record.published),
        ("last error", record.last_error),
    ]
    for name, value in rows:
        if value not in (None, ""):
            say(f"{name + ':':<14}{value}")
    if letter := record.dead_letter:
        say(f"{'dead letter:':<14}{letter.code}: {letter.reason}")
        note(f"Look closer with: headrace dlq show {letter.id}" if letter.id else "Look closer with: headrace dlq list")
    if record.result:
        say(f"\n{text_of(record)}")
