"""The worker process: the engine is made ready, then one identity after the other serves until the process drains."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import structlog

from runtime.broker.client import Broker
from runtime.engine.base import Engine
from runtime.registry.registry import Registry
from runtime.settings import Settings
from runtime.worker.identity import Identity, OnReady, ReadyReport, Resources, new_name
from runtime.worker.lanes import Lanes
from runtime.worker.lease import LeaseKeeper
from runtime.worker.limiter import Limiter

__all__ = ["ReadyReport", "run_worker"]

log = structlog.get_logger("headrace.worker")

EXIT_OK = 0
EXIT_FAILED = 1
"""A role of the process ended by itself; the log says which."""


async def run_worker(
    settings: Settings,
    *,
    redis_url: str,
    flows: Path,
    only: frozenset[str] = frozenset(),
    engine: Engine,
    on_ready: OnReady | None = None,
    install_signals: bool = True,
    stop: asyncio.Event | None = None,
) -> int:
    """Run a worker until SIGTERM, SIGINT or ``stop``; a second signal hurries. Returns the exit code."""

    def connect() -> Broker:
        return Broker.connect(redis_url, settings.redis, settings.retention)

    await engine.prepare(concurrency=settings.worker.concurrency)
    resources = Resources(
        settings=settings,
        engine=engine,
        registry=Registry(flows),
        broker=connect(),
        only=only,
        lanes=Lanes(),
        limiter=Limiter(settings.worker.concurrency),
        drain=stop or asyncio.Event(),
        hurry=asyncio.Event(),
    )
    if install_signals:
        _install_signals(resources)
    try:
        while True:
            name = new_name()
            lease = LeaseKeeper(connect, worker=name, lease=settings.worker.lease)
            if await Identity(resources, name=name, lease=lease).run(on_ready):
                break
            on_ready = None  # the same process, under another name
    except Exception:
        log.exception("worker.failed")
        return EXIT_FAILED
    finally:
        await resources.broker.close()
        await engine.close()
    return EXIT_OK


def _install_signals(resources: Resources) -> None:
    def signalled(number: int) -> None:
        hurry = resources.drain.is_set()
        log.info("worker.signalled", signal=signal.Signals(number).name, hurry=hurry)
        (resources.hurry if hurry else resources.drain).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
