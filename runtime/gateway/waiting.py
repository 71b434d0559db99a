"""Waiting for a run's end, for a client that asked for its result."""

from __future__ import annotations

import time

from runtime.broker.client import Broker
from runtime.broker.keys import RouteKeys
from shared_models.result import RunRecord


async def wait_for_end(broker: Broker, keys: RouteKeys, event_id: str, seconds: float) -> RunRecord | None:
    """The run's record once it has ended; None where that takes longer. Raises BrokerError."""
    deadline, after = time.monotonic() + seconds, "0-0"
    while True:
        record = await broker.runs.get(keys, event_id)
        if record is not None and record.status.final:
            return record
        if (left := deadline - time.monotonic()) <= 0:
            return None
        for event in await broker.runs.feed(keys, event_id, after=after, block=left):
            after = event.id
