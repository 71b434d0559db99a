"""The first contact with Redis: one that is away is waited for, however long; one that can never serve is told of."""

from __future__ import annotations

import asyncio

import structlog

from runtime.broker.client import Broker
from runtime.broker.server import admit
from runtime.errors import ServerUnfit
from shared_models.errors import HeadraceError

log = structlog.get_logger("headrace.worker")


async def until_admitted(broker: Broker) -> None:
    """Wait for a Redis that a worker can live on. Raises ServerUnfit where it never can."""
    tries = 0
    while True:
        try:
            await admit(broker)
        except ServerUnfit:
            raise
        except HeadraceError as error:
            tries += 1
            log.warning("redis.failed", step="first contact", code=error.code, error=error.message)
            await asyncio.sleep(min(2.0, 0.1 * 2 ** min(tries, 5)))
        else:
            return
