"""Runs in words: what came out, why one failed, why one is not done yet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runtime.cli.directory import keys_of
from runtime.cli.output import note

if TYPE_CHECKING:
    from runtime.broker.client import Broker
    from runtime.broker.fleet import RouteEntry, WorkerReport
    from runtime.cli.waiting import Target
    from shared_models.result import RunRecord


def text_of(record: RunRecord) -> str:
    """The result's text; where the flow gave none, its outputs as JSON."""
    if record.result is None:
        return ""
    if record.result.text is not None:
        return record.result.text
    return json.dumps([output.model_dump(mode="json") for output in record.result.outputs], ensure_ascii=False)


def failure_of(record: RunRecord) -> str | None:
    """Why an ended run gave no result, in a sentence; None if it completed."""
    who = f"{record.event_id} on route {record.route}"
    if letter := record.dead_letter:
        place = f" in component {letter.component_id}" if letter.component_id else ""
        tries = f"{letter.attempts} attempt{'s' if letter.attempts != 1 else ''}"
        return f"{who} was dead-lettered ({letter.code}{place}, {tries}): {letter.reason}"
    if record.status.value == "completed":
        return None
    return f"{who} was {record.status.value}" + (f": {record.last_error}" if record.last_error else "")


async def tell_waiting(broker: Broker, target: Target, seconds: float | None) -> None:
    """Say that a run has not ended in time, why if it can be told, and how to look for it."""
    record = await broker.runs.get(keys_of(target.route), target.event_id)
    status = record.status.value if record else "not begun"
    reason = await why_not(broker, target.route)
    note(
        f"headrace: {target.event_id} on route {target.route.route} has not ended after {seconds:g} s ({status}); "
        f"it goes on{f', but {reason}' if reason else ''}. Look with: headrace runs show {target.event_id}"
    )


class Patience:
    """Says once, to whoever waits for a run, why nothing happens, if it can be told."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._told: set[str] = set()

    async def __call__(self, target: Target) -> None:
        """Nothing was heard of this run for a while."""
        reason = await why_not(self._broker, target.route)
        if reason and reason not in self._told:
            self._told.add(reason)
            note(f"headrace: {target.event_id} on route {target.route.route} waits: {reason}")


async def why_not(broker: Broker, route: RouteEntry) -> str | None:
    """What keeps a route from running events: it is blocked, unready, or no worker runs it. None if nothing does."""
    (blocked,) = await broker.streams.blocked([keys_of(route)])
    if blocked is not None:
        return f"the route is blocked: {blocked.reason}"
    return unready(route, await broker.fleet.workers())


def unready(route: RouteEntry, workers: Sequence[WorkerReport]) -> str | None:
    """Why no worker runs a route; None if one does."""
    if any(route.route in worker.routes for worker in workers):
        return None
    if not workers:
        return "no worker is running"
    if not route.ready:
        return f"the route is not ready: {route.reason or 'its flow cannot be loaded'}"
    return "no running worker has this route"
