"""``headrace status``: what waits, runs and fails, per route, and which workers there are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.cli.groups import left_behind, sentence
from runtime.cli.options import AsJson, Flows, RedisUrl, wait_for
from runtime.cli.output import age, note, say, say_json, table

if TYPE_CHECKING:
    from runtime.broker.client import Broker
    from runtime.broker.fleet import RouteEntry, WorkerReport
    from runtime.broker.streams import BlockInfo, StreamCounts

TOTALS = ("length", "waiting", "running", "delayed", "dead")


def status(flows: Flows = None, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """Show every route: is it ready, what waits, runs, is delayed and dead; and the workers."""
    found = wait_for(_status(flows, redis_url))
    if as_json:
        say_json(found)
        return
    _print(found)


async def _status(flows: Path | None, redis_url: str | None) -> dict[str, Any]:
    from runtime.cli.connection import connected, read_settings
    from runtime.cli.directory import Directory

    settings = read_settings()
    async with connected(redis_url, settings) as broker:
        folder = flows or settings.flows
        directory = await Directory.load(broker, folder)
        entries = list(directory.routes.values())
        found = await gather(broker, entries)
        return {**found, "left_behind": await left_behind(broker, entries, folder)}


async def gather(broker: Broker, entries: Sequence[RouteEntry]) -> dict[str, Any]:
    """``{routes, workers, totals}`` as `status --json` prints it. Times in ms since the epoch, ages in ms.

    A route's ``waiting`` is None where it is not known, and the total is with it.
    """
    from runtime.cli.directory import keys_of

    keys = [keys_of(entry) for entry in entries]
    workers = await broker.fleet.workers()
    counts = await broker.streams.counts(keys, [entry.dead_letters for entry in entries])
    blocks = await broker.streams.blocked(keys)
    routes = [_route(e, c, b, workers) for e, c, b in zip(entries, counts, blocks, strict=True)]
    return {
        "routes": routes,
        "workers": [asdict(worker) for worker in workers],
        "totals": {name: _total([route[name] for route in routes]) for name in TOTALS},
    }


def _total(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _route(
    entry: RouteEntry, counts: StreamCounts, block: BlockInfo | None, workers: Sequence[WorkerReport]
) -> dict[str, Any]:
    from runtime.cli.results import unready

    runners = [worker for worker in workers if entry.route in worker.routes]
    reason = block.reason if block else unready(entry, workers)
    return {
        "route": entry.route,
        "stream": entry.stream,
        "group": entry.group,
        "version": entry.version,
        "ready": bool(runners),
        "blocked": block is not None,
        "reason": reason or entry.reason or None,
        "length": counts.length,
        "waiting": counts.waiting,
        "running": counts.running,
        "delayed": counts.delayed,
        "dead": counts.dead,
        "oldest_waiting_ms": counts.oldest_waiting_ms,
        "workers": len(runners),
    }


def _shown(numbers: dict[str, Any]) -> list[int | str]:
    return ["?" if numbers[name] is None else numbers[name] for name in TOTALS]


def _print(found: dict[str, Any]) -> None:
    now = time.time_ns() // 1_000_000
    columns = ["route", "state", "version", "length", "lag", "running", "delayed", "dead", "oldest", "workers"]
    rows = [
        [
            r["route"],
            "blocked" if r["blocked"] else "ready" if r["ready"] else "unready",
            (r["version"] or "")[:7],
            *_shown(r),
            age(None if r["oldest_waiting_ms"] is None else (now - r["oldest_waiting_ms"]) / 1000),
            r["workers"],
        ]
        for r in found["routes"]
    ]
    if len(rows) > 1:
        rows.append(["total", "", "", *_shown(found["totals"]), "", ""])
    table(columns, rows, empty="no route is registered: is a worker running?", wide="route")
    for r in found["routes"]:
        if r["reason"]:
            say(f"{r['route']}: {r['reason']}")
    for row in found["left_behind"]:
        say(sentence(row))
    say()
    table(
        ["worker", "started", "running", "of", "routes", "state"],
        (
            [
                w["name"],
                age((now - w["started_at"]) / 1000) + " ago",
                w["running"],
                w["concurrency"],
                len(w["routes"]),
                w["state"],
            ]
            for w in found["workers"]
        ),
        empty="no worker is running; start one with `headrace worker` or `headrace up`",
    )
    if not found["workers"]:
        note("events wait in their streams until one is")
