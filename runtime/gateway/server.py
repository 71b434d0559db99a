"""The process that serves the application, from its first request to its last."""

from __future__ import annotations

import asyncio
import errno
import gc
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn
import uvloop
from starlette.types import ASGIApp

from runtime.broker.client import Broker
from runtime.errors import BrokerError
from runtime.gateway.app import create_app
from runtime.gateway.auth import needs_keys
from runtime.gateway.deps import Gateway
from runtime.gateway.protocol import guarded
from runtime.settings import Settings
from runtime.telemetry import logs

_LOG = logs.get_logger("headrace.gateway")


class _Server(uvicorn.Server):
    """Tells when it listens, and that it ends before it closes anything."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, on_ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End in order at the first signal, at once at the second.

        The base class raises the signal once more when all is over, and so ends with it.
        """
        loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What is there now stays: a collection that looked at all of it would hold every request up for 0.1 s.
        gc.collect()
        gc.freeze()
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.ending.append("the gateway is ending")
        self._gateway.following.end()
        await super().shutdown(sockets)


def listen(host: str, port: int, *, or_free: bool = False) -> socket.socket:
    """A socket that listens; port 0 takes a free one, and so does a port that is taken, with ``or_free``.

    Raises OSError.
    """
    try:
        return _listen(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not or_free:
            raise
    return _listen(host, 0)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(2048)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def serve(settings: Settings, *, redis_url: str, listening: socket.socket, on_ready: Callable[[], object]) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, redis_url, listening, on_ready))
    return 0


async def _serve(settings: Settings, redis_url: str, listening: socket.socket, on_ready: Callable[[], object]) -> None:
    broker = Broker.connect(redis_url, settings.redis, settings.retention)
    gateway = Gateway.make(broker, settings)
    try:
        await _tell_of_keys(gateway)
        await _Server(_config(create_app(gateway), settings), gateway, on_ready).serve([listening])
    finally:
        await gateway.following.close()
        await broker.close()


async def _tell_of_keys(gateway: Gateway) -> None:
    """Say so where keys are needed and there are none: every request would be refused."""
    if not needs_keys(gateway.settings.gateway):
        return
    with suppress(BrokerError):  # told when the first request comes
        if not await gateway.broker.api_keys.all():
            _LOG.warning("gateway.no_keys", hint="requests need an API key: headrace keys create makes one")


def _config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=guarded(
            read_timeout=settings.gateway.read_timeout,
            max_headers=settings.gateway.max_headers,
            most=settings.gateway.connections,
        ),
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=settings.gateway.keep_alive,
        timeout_graceful_shutdown=max(1, int(settings.gateway.grace)),
    )
