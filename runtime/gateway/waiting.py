"""Waiting for a run's end, for a client that asked for its result."""

from __future__ import annotations

import asyncio
import time

from runtime.broker.feeds import FROM_START
from runtime.broker.keys import RouteKeys
from runtime.errors import BrokerError
from runtime.gateway.deps import Gateway
from shared_models.result import RunRecord

LOOK = 10.0
"""Seconds after which the record is looked at even where nothing was heard."""


async def wait_for_end(gateway: Gateway, keys: RouteKeys, event_id: str, seconds: float) -> RunRecord | None:
    """The run's record once it has ended; None where that takes longer, or Redis is away: the event is accepted."""
    deadline, wake = time.monotonic() + seconds, asyncio.Event()
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + seconds):
            with gateway.following.subscribe(keys, event_id, FROM_START, wake=wake, watch=False) as lines:
                while not lines.over:
                    wake.clear()
                    lines.take()
                    record = await gateway.broker.runs.get(keys, event_id)
                    if record is not None and record.status.final:
                        return record
                    try:
                        async with asyncio.timeout(min(LOOK, max(0.0, deadline - time.monotonic()))):
                            await wake.wait()
                    except TimeoutError:
                        if time.monotonic() >= deadline:
                            return None
    except (BrokerError, TimeoutError):
        pass
    return None
