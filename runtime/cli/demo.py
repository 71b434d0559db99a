"""The example pipeline's two events, sent once everything is up: `make run` ends with both results."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from runtime.cli.output import say

if TYPE_CHECKING:
    from runtime.broker.client import Broker
    from runtime.cli.directory import Directory
    from shared_models.result import RunRecord

STREAM = "agent_jobs:ingress"
EVENTS = (
    ("code", "Write a Python function that reverses a linked list"),
    ("database", "Select the ten newest rows of the orders table"),
)
PATIENCE = 120.0
"""Seconds that a first run may take: the engine may still be importing what the flow needs."""


async def run_demo(broker: Broker) -> bool:
    """Send one event per branch of the example pipeline, print how each went. Whether both completed."""
    from runtime.cli.directory import Directory

    directory = Directory(await broker.fleet.routes())
    if not directory.readers(STREAM):
        say(f"the example pipeline is not here: no route reads {STREAM}")
        return False
    return all([await _branch(broker, directory, label, text) for label, text in EVENTS])


async def _branch(broker: Broker, directory: Directory, label: str, text: str) -> bool:
    from runtime.cli.results import Patience, failure_of, tell_waiting, text_of
    from runtime.cli.send import envelope, publish
    from runtime.cli.waiting import Deadline, Target, follow

    say(f"\n{label} branch: headrace send {STREAM} --input {text!r} --follow")
    began, event, good = time.monotonic(), envelope({"input_value": text}), True
    routes = directory.readers(STREAM)
    async for _ in publish(broker, STREAM, routes, iter([event])):
        pass

    def seen(record: RunRecord, last: bool) -> None:
        nonlocal good
        if failure := failure_of(record):
            good = False
            say(f"  {failure}")
            return
        say(f"  {record.route} -> {', '.join(p.stream for p in record.published) or 'nowhere'}")
        if last:
            for line in text_of(record).splitlines():
                say(f"  | {line}")

    targets = [Target(route, event.event_id) for route in routes]
    missing = await follow(
        broker, targets, readers=directory.readers, deadline=Deadline(PATIENCE), seen=seen, silent=Patience(broker)
    )
    for target in missing:
        await tell_waiting(broker, target, PATIENCE)
    say(f"  {time.monotonic() - began:.2f} s")
    return good and not missing
