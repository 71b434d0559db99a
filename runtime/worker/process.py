"""A worker: its processes under a supervisor as a user starts it, or one event loop within a process as a test does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from runtime.archive.archive import Archive
from runtime.broker.client import Broker
from runtime.engine.base import Engine, FlowSource, LoadedFlow
from runtime.registry.registry import Registry
from runtime.registry.snapshot import Snapshot
from runtime.settings import Settings
from runtime.telemetry.resident import share_arena
from runtime.worker import child, zygote
from runtime.worker.board import Board
from runtime.worker.child import ChildContext
from runtime.worker.identity import Identity, OnReady, ReadyReport, Resources, new_name
from runtime.worker.lanes import Lanes
from runtime.worker.lease import LeaseKeeper
from runtime.worker.limiter import Limiter
from runtime.worker.punctual import Punctual, Step
from runtime.worker.route_book import flow_source, sources
from runtime.worker.supervisor import OnReading, Supervisor
from runtime.worker.zygote import STOPS, ChildSpec
from shared_models.errors import HeadraceError

__all__ = ["ReadyReport", "Worker", "run_worker"]

log = structlog.get_logger("headrace.worker")

EXIT_OK = 0
EXIT_FAILED = 1
"""A role of the process ended by itself; the log says which."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker is started with."""

    settings: Settings
    redis_url: str
    flows: Path
    engine: Engine
    only: frozenset[str] = frozenset()

    def run(self, on_reading: OnReading | None = None) -> int:
        """Supervise ``settings.worker.processes`` children until SIGTERM or SIGINT. Returns the exit code.

        To be called before the process has a thread, a loop or a connection: it forks.
        """
        # Until each of the two processes knows what to do with them, they wait.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        board = Board()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        share_arena()
        # What is there now stays in both: the zygote's collector, would write to its pages.
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            ours.close()
            os._exit(_zygote(self, theirs, board))
        theirs.close()

        async def supervise() -> int:
            supervisor = Supervisor(
                self.settings,
                redis_url=self.redis_url,
                control=ours,
                zygote=pid,
                board=board,
                flows=self.flows,
                only=self.only,
                on_reading=on_reading,
            )
            return await supervisor.run()

        code = asyncio.run(supervise())
        # Its children have ended; what is left of it may still be importing the engine, for nobody.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return code


def _zygote(worker: Worker, control: socket.socket, board: Board) -> int:
    preloaded: dict[str, tuple[FlowSource, LoadedFlow]] = {}
    registry = Registry(worker.flows)
    supervisor = os.getppid()

    engine = Punctual(worker.engine, limit=worker.settings.worker.start_timeout, step=lambda _: None)

    def preload(step: Step) -> Mapping[str, Any]:
        nonlocal engine
        step("reading the flows folder")
        snapshot = registry.rescan()
        engine = engine.telling(step)
        preloaded.update(asyncio.run(_preload(worker, engine, snapshot)))
        return {"loaded": len(preloaded)}

    def child_main(spec: ChildSpec, sock: socket.socket) -> int:
        context = ChildContext(
            settings=worker.settings,
            redis_url=worker.redis_url,
            registry=registry,
            only=worker.only,
            engine=engine,
            preloaded=preloaded,
            board=board,
            supervisor=supervisor,
        )
        return child.main(spec, sock, context)

    try:
        # Looked at before each fork, so that a child too keeps the last good version of a file that is broken by then.
        return zygote.run(control, preload=preload, before_fork=registry.rescan, child_main=child_main)
    except HeadraceError as error:
        log.error("worker.not_started", code=error.code, error=error.message)  # noqa: TRY400  a sentence for people
        return EXIT_FAILED
    except BrokenPipeError:
        return EXIT_OK  # the supervisor was told to end before this was ready
    except Exception:
        log.exception("zygote.failed")
        return EXIT_FAILED


async def _preload(worker: Worker, engine: Engine, snapshot: Snapshot) -> dict[str, tuple[FlowSource, LoadedFlow]]:
    """Load every flow once, for all children to share. One that cannot be loaded is told of by the children."""
    if worker.settings.archive.url is not None:
        with contextlib.suppress(ImportError):  # the children say so
            importlib.import_module("obstore.store")  # the library only: the store is made in each child
    await engine.prepare(concurrency=worker.settings.worker.concurrency)
    engine.set_siblings(sources(snapshot.routes))
    loaded = {}
    for name, route in snapshot.routes.items():
        if worker.only and name not in worker.only:
            continue
        source = flow_source(route)
        try:
            loaded[name] = (source, await engine.load(source))
        except HeadraceError as error:
            log.debug("route.not_preloaded", route=name, code=error.code)
    await engine.close()
    return loaded


async def run_worker(
    settings: Settings,
    *,
    redis_url: str,
    flows: Path,
    only: frozenset[str] = frozenset(),
    engine: Engine,
    on_ready: OnReady | None = None,
    stop: asyncio.Event,
) -> int:
    """Run a worker on this event loop until ``stop``; the exit code.

    All roles of a child without its processes: for tests that look into a worker, and give it an engine of their own.
    `headrace worker` is ``Worker.run``.
    """

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
        archive=Archive.open(settings.archive),
        drain=stop,
        hurry=asyncio.Event(),
    )
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
