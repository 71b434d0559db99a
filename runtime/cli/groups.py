"""Consumer groups that no route reads with: who they are, and how they are given up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.options import Flows, RedisUrl, wait_for
from runtime.cli.output import FAILED, note, say

if TYPE_CHECKING:
    from runtime.broker.client import Broker
    from runtime.broker.fleet import RouteEntry


async def left_behind(broker: Broker, entries: Sequence[RouteEntry], flows: Path) -> list[dict[str, Any]]:
    """``{stream, group, entries}`` of groups that keep entries on a route's stream and that no route reads with."""
    read = {(entry.stream, entry.group) for entry in entries} | set(_of_folder(flows).values())
    groups = await broker.streams.groups(sorted({entry.stream for entry in entries}))
    return [
        {"stream": stream, "group": group.name, "entries": group.entries}
        for stream, found in groups.items()
        for group in found
        if group.entries and (stream, group.name) not in read
    ]


def sentence(row: dict[str, Any]) -> str:
    """What such a group means, and what to do."""
    return (
        f"{row['stream']}: the group {row['group']}, with which no route reads, keeps up to {row['entries']} entries; "
        f"if nothing else needs it: headrace flows retire {row['stream']} {row['group']}"
    )


def retire(
    *,
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    force: Annotated[
        bool, typer.Option("--force", help="Also where a consumer that is no worker's has been active lately.")
    ] = False,
    flows: Flows = None,
    redis_url: RedisUrl = None,
) -> None:
    """Give up a consumer group that no route reads with any more, after its name was changed or its route removed.

    What it has not settled is not run for it any more. Entries that no other group needs are then deleted. Refused
    while a worker, or anybody else's consumer, reads with it.
    """
    refused = wait_for(_retire(stream, group, flows, redis_url, force=force))
    if refused is not None:
        note(f"headrace: {refused}")
        raise typer.Exit(FAILED)
    say(f"the group {group} of {stream} is given up")


async def _retire(stream: str, group: str, flows: Path | None, redis_url: str | None, *, force: bool) -> str | None:
    """Why it was not; None: it was."""
    from runtime.broker.keys import RouteKeys
    from runtime.broker.streams import QUIET, Retired
    from runtime.cli.connection import connected, read_settings
    from runtime.errors import GroupMissing

    settings = read_settings()
    names = [name for name, keys in _of_folder(flows or settings.flows).items() if keys == (stream, group)]
    if names:
        return f"the route {names[0]} of the folder reads with it"
    async with connected(redis_url, settings) as broker:
        routes, workers = await broker.fleet.routes(), await broker.fleet.workers()
        stale = [entry.route for entry in routes.values() if (entry.stream, entry.group) == (stream, group)]
        for name in stale:
            if any(name in worker.routes for worker in workers):
                return f"a worker runs the route {name}, which reads with it"
        try:
            retired = await broker.streams.retire(RouteKeys(stream, group), quiet=0.0 if force else QUIET)
            if retired is Retired.READ:
                return "a worker that is alive reads with it"
            if retired is Retired.USED:
                return (
                    f"a consumer that is no worker's was active in it within the last {QUIET / 60:.0f} minutes; "
                    "if nobody needs the group all the same: --force"
                )
        except GroupMissing:
            if not stale:
                return f"{stream} has no group {group}"
        for name in stale:
            await broker.fleet.forget(name)
    return None


def _of_folder(flows: Path) -> dict[str, tuple[str, str]]:
    from runtime.cli.directory import scan_folder

    snapshot = scan_folder(flows)
    return {name: (r.stream, r.group) for name, r in {**snapshot.disabled, **snapshot.routes}.items()}
