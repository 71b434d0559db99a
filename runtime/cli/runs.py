"""``headrace runs``: what became of events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli import remote
from runtime.cli.options import AsJson, Flows, RedisUrl, RouteOption, group, wait_for
from runtime.cli.output import FAILED, note, say, say_json, shorten, table, when
from runtime.cli.remote import GatewayUrl, gateway_of

if TYPE_CHECKING:
    from runtime.cli.directory import Directory
    from shared_models.result import RunRecord

app = group("What became of events.")

PAGE = 200
"""Runs asked for in one round trip."""

STATUSES = ("queued", "running", "delayed", "waiting", "completed", "dead_lettered", "cancelled")


@app.command("show")
def show(
    *,
    event_id: Annotated[str, typer.Argument(metavar="ID", help="The event id.", show_default=False)],
    route: RouteOption = None,
    flows: Flows = None,
    redis_url: RedisUrl = None,
    gateway: GatewayUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the run of an event. Exits 1 if there is none, or if it was dead-lettered."""
    from runtime.cli.results import failure_of

    url = gateway_of(gateway, redis_url)
    record = wait_for(remote.show(url, event_id, route) if url else _find(event_id, route, flows, redis_url))
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
    gateway: GatewayUrl = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    if status is not None and status not in STATUSES:
        raise typer.BadParameter(f"there is no status {status!r}; there are {', '.join(STATUSES)}")
    url = gateway_of(gateway, redis_url)
    records = wait_for(
        remote.listed(url, route, status, count) if url else _list(route, status, count, flows, redis_url)
    )
    if as_json:
        say_json(records)
        return
    table(
        ["event", "route", "status", "attempts", "began", "result or error"],
        ([r.event_id, r.route, r.status.value, r.attempts, when(_time(r)), shorten(_gist(r))] for r in records),
        empty="no runs",
    )


@app.command("resume")
def resume(
    *,
    event_id: Annotated[str, typer.Argument(metavar="ID", help="The event id.", show_default=False)],
    decision: Annotated[
        str, typer.Option("--decision", "-d", metavar="ACTION", help="One of the run's options.", show_default=False)
    ],
    values: Annotated[
        list[str] | None,
        typer.Option("--value", metavar="NAME=VALUE", help="What the action takes; JSON, or else text. Repeatable."),
    ] = None,
    request: Annotated[
        str | None, typer.Option("--request", metavar="ID", help="The question; default: the one that is asked now.")
    ] = None,
    route: RouteOption = None,
    flows: Flows = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Decide what a run asks that waits for a person, and let it go on."""
    record = wait_for(_resume(event_id, decision, _values(values or []), request, route, flows, redis_url))
    if as_json:
        say_json(record)
    else:
        say(f"{record.event_id} goes on with {decision!r}")


def _values(pairs: list[str]) -> dict[str, Any]:
    import json

    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--value takes NAME=VALUE, not {pair!r}")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


async def _resume(  # noqa: PLR0917  one for each option
    event_id: str,
    action: str,
    values: dict[str, Any],
    request: str | None,
    route: str | None,
    flows: Path | None,
    redis_url: str | None,
) -> RunRecord:
    from runtime.cli.connection import connected, read_settings
    from runtime.cli.directory import Directory, keys_of
    from runtime.errors import RouteNotFound
    from shared_models.result import Decision

    settings = read_settings()
    async with connected(redis_url, settings) as broker:
        directory = await Directory.load(broker, flows or settings.flows)
        for chosen in directory.chosen(route):
            keys = keys_of(chosen)
            if await broker.runs.get(keys, event_id) is not None:
                decision = Decision(action_id=action, values=values)
                return await broker.pauses.resume(keys, event_id, decision, request_id=request)
        raise RouteNotFound(_unknown(event_id, directory))


@app.command("cancel")
def cancel(
    *,
    event_id: Annotated[str, typer.Argument(metavar="ID", help="The event id.", show_default=False)],
    route: RouteOption = None,
    flows: Flows = None,
    redis_url: RedisUrl = None,
    gateway: GatewayUrl = None,
) -> None:
    """Cancel a run that has not ended; one that runs is told to stop. Exits 1 if there is none, or it has ended."""
    url = gateway_of(gateway, redis_url)
    done = wait_for(remote.cancel(url, event_id, route) if url else _cancel(event_id, route, flows, redis_url))
    if done not in ("cancelled", "asked"):
        note(f"headrace: the run of {event_id} has ended already")
        raise typer.Exit(FAILED)
    say(f"{event_id} " + ("is cancelled" if done == "cancelled" else "runs, and is told to stop"))


async def _cancel(event_id: str, route: str | None, flows: Path | None, redis_url: str | None) -> str:
    from runtime.broker.runs import Cancelled
    from runtime.cli.connection import connected, read_settings
    from runtime.cli.directory import Directory, keys_of
    from runtime.errors import RouteNotFound

    settings = read_settings()
    async with connected(redis_url, settings) as broker:
        directory = await Directory.load(broker, flows or settings.flows)
        for chosen in directory.chosen(route):
            done = await broker.runs.cancel(keys_of(chosen), event_id)
            if done is not Cancelled.UNKNOWN:
                return done.name.lower()
        raise RouteNotFound(_unknown(event_id, directory))


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
    from runtime.broker.listing import RunFilter
    from runtime.cli.connection import connected, read_settings
    from runtime.cli.directory import Directory, keys_of
    from shared_models.result import RunStatus

    settings = read_settings()
    wanted = RunFilter(status=RunStatus(status) if status else None)
    async with connected(redis_url, settings) as broker:
        directory = await Directory.load(broker, flows or settings.flows)
        keys = [keys_of(chosen) for chosen in directory.chosen(route)]
        records: list[RunRecord] = []
        cursor: str | None = None
        while len(records) < count:
            page = await broker.runs.page(keys, wanted, count=min(PAGE, count - len(records)), cursor=cursor)
            records += page.records
            if (cursor := page.next) is None:
                break
    return records


def _time(record: RunRecord) -> int:
    return record.started_at or record.queued_at or record.ended_at or 0


def _gist(record: RunRecord) -> str:
    from runtime.cli.results import text_of

    if record.pause:
        return f"asks: {record.pause.prompt}"
    if record.dead_letter:
        return f"{record.dead_letter.code}: {record.dead_letter.reason}"
    return text_of(record) if record.result else record.last_error or ""


def _print(record: RunRecord) -> None:
    import json

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
    if pause := record.pause:
        say(f"{'asks:':<14}{pause.prompt}")
        for call in pause.calls:
            say(f"{'call:':<14}{json.dumps(call, ensure_ascii=False)}")
        say(f"{'options:':<14}{', '.join(pause.allowed)}")
        note(f"Decide with: headrace runs resume {record.event_id} --decision {pause.allowed[0]}")
    if letter := record.dead_letter:
        say(f"{'dead letter:':<14}{letter.code}: {letter.reason}")
        note(f"Look closer with: headrace dlq show {letter.id}" if letter.id else "Look closer with: headrace dlq list")
    if record.result:
        say(f"\n{text_of(record)}")
