"""``headrace up``: a Valkey and a worker in one command. When either ends by itself, all ends, and it says so."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.options import Flows, RedisUrl, wait_for
from runtime.cli.output import FAILED, note, say

if TYPE_CHECKING:
    import asyncio
    from asyncio.subprocess import Process

    from runtime.broker.embedded import EmbeddedValkey
    from runtime.settings import Settings


def up(
    *,
    flows: Flows = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="The embedded Valkey's data. Default: HEADRACE_DATA, else .headrace."
        ),
    ] = None,
    redis_url: RedisUrl = None,
    demo: Annotated[bool, typer.Option("--demo", help="Send an event through each branch of the example.")] = False,
    exit_after_demo: Annotated[bool, typer.Option("--exit-after-demo", help="End when the demo has ended.")] = False,
    engine: Annotated[str, typer.Option("--engine", hidden=True)] = "langflow",
) -> None:
    """Start everything: an embedded Valkey (unless a Redis is given) and a worker. Ctrl-C ends both cleanly.

    The Redis is --redis-url, HEADRACE_REDIS__URL or REDIS_URL if one of them is set.
    """
    from runtime.cli.connection import read_settings
    from runtime.telemetry import outlet

    outlet.guard()  # its terminal may close before it has drained
    settings = read_settings()
    settings = settings.model_copy(update={"flows": flows or settings.flows, "data": data or settings.data})
    whole = Whole(settings, engine=engine, demo=demo or exit_after_demo, stay=not exit_after_demo)
    raise typer.Exit(wait_for(whole.run(redis_url)))


class Whole:
    """The parts of `headrace up`, and what ends them: a signal, or the end of one of them."""

    def __init__(self, settings: Settings, *, engine: str, demo: bool, stay: bool) -> None:
        self._settings = settings
        self._engine = engine
        self._demo = demo
        self._stay = stay
        self._valkey: EmbeddedValkey | None = None
        self._worker: Process | None = None

    async def run(self, redis_url: str | None) -> int:
        """The exit code: 0 after a signal or a demo that went well."""
        import asyncio
        import signal

        from runtime.cli.connection import given_url

        self._stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(signal.SIGHUP, self._stop.set)
        try:
            url = given_url(redis_url, self._settings) or await self._start_valkey()
            return await self._serve(url)
        finally:
            if self._valkey is not None:
                await asyncio.to_thread(self._valkey.stop)

    def _signalled(self) -> None:
        if self._stop.is_set() and self._worker is not None and self._worker.returncode is None:
            note("headrace: asked twice: the worker drops what it runs")
            self._worker.terminate()
        self._stop.set()

    async def _start_valkey(self) -> str:
        from runtime.broker.embedded import EmbeddedValkey

        # Here and not in a thread: the server is told to end when the thread that started it ends.
        self._valkey = EmbeddedValkey.start(self._settings.data)
        return self._valkey.url

    async def _serve(self, url: str) -> int:
        import asyncio

        self._settings.flows.mkdir(parents=True, exist_ok=True)
        note(f"starting a worker on {_where(url)}; loading Langflow takes ten seconds or more")
        self._worker, ready = await self._start_worker(url)
        parts = {
            "stop": asyncio.create_task(self._stop.wait(), name="up-stop"),
            "worker": asyncio.create_task(self._worker.wait(), name="up-worker"),
            "valkey": asyncio.create_task(self._valkey_gone(), name="up-valkey"),
        }
        story = asyncio.create_task(self._story(url, ready), name="up-story")
        try:
            await asyncio.wait([*parts.values(), story], return_when=asyncio.FIRST_COMPLETED)
            if story.done() and (not self._stay or story.exception()):
                return 0 if await story else FAILED
            await asyncio.wait(parts.values(), return_when=asyncio.FIRST_COMPLETED)
            return self._verdict(parts)
        finally:
            for task in (story, *parts.values()):
                task.cancel()
            await asyncio.gather(story, *parts.values(), return_exceptions=True)
            await self._end_worker()

    def _verdict(self, parts: dict[str, asyncio.Task[Any]]) -> int:
        if parts["stop"].done():
            say("draining: what runs is finished, then everything ends")
            return 0
        if parts["worker"].done():
            code: int = parts["worker"].result()
            note(f"headrace: the worker has ended by itself ({_how(code)}); so everything ends")
            return code if code > 0 else FAILED
        note(f"headrace: Valkey has ended by itself (see the log in {self._settings.data}); so everything ends")
        return FAILED

    async def _valkey_gone(self) -> None:
        """Returns when the embedded server has ended; never where there is none."""
        import asyncio

        while self._valkey is None or self._valkey.alive():  # noqa: ASYNC110  it is another process: only asking tells
            await asyncio.sleep(1.0)

    async def _start_worker(self, url: str) -> tuple[Process, asyncio.StreamReader]:
        """The worker as a process of its own: a component that crashes or blocks takes only that one along."""
        import asyncio

        reading, writing = os.pipe()
        words = [sys.executable, "-P", "-m", "runtime.cli", "worker", "--flows", str(self._settings.flows)]
        words += ["--engine", self._engine, "--ready-fd", str(writing), "--parent", str(os.getpid())]
        # Its own process group: a Ctrl-C in the terminal reaches only `up`, which ends the parts in order. The URL may
        # hold a password, so it does not stand on a command line.
        worker = await asyncio.create_subprocess_exec(
            *words, env={**os.environ, "HEADRACE_REDIS__URL": url}, pass_fds=[writing], process_group=0
        )
        os.close(writing)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb")
        )
        return worker, reader

    async def _story(self, url: str, ready: asyncio.StreamReader) -> bool:
        """Wait for the worker, say that all is ready, run the demo if asked. Whether the demo went well."""
        import asyncio

        if not (told := await ready.read()):
            await asyncio.Event().wait()  # the worker has ended, which somebody else notices
        self._say_ready(url, json.loads(told))
        if not self._demo:
            return True
        from runtime.broker.client import Broker
        from runtime.cli.demo import run_demo

        broker = Broker.connect(url, self._settings.redis, self._settings.retention)
        try:
            good = await run_demo(broker)
        finally:
            await broker.close()
        if self._stay:
            say("\nrunning until Ctrl-C")
        return good

    def _say_ready(self, url: str, report: dict[str, Any]) -> None:
        from runtime.cli.ready import say_ready

        ready, folder = report["ready"], self._settings.flows
        say_ready(report, more=f" in {folder}, {_where(url)}")
        if ready:
            say(f"  routes: {', '.join(ready)}")
            example = "hello" if "hello" in ready else ready[0]
            say(f'  send:   headrace send {example} --input "hello" --wait 30')
        else:
            say(f"  drop an exported flow into {folder}; it is picked up at once")
        say("  look:   headrace status, headrace runs list, headrace dlq list")
        sys.stdout.flush()

    async def _end_worker(self) -> None:
        """Drain the worker; kill it where it does not end in its time."""
        import asyncio

        from runtime.worker import deadlines

        worker = self._worker
        if worker is None or worker.returncode is not None:
            return
        worker.terminate()
        try:
            async with asyncio.timeout(deadlines.of_up(self._settings.worker.grace)):
                await worker.wait()
        except TimeoutError:
            note("headrace: the worker did not end in time and is killed; its entries go to the next worker")
            worker.kill()
            await worker.wait()


def _how(code: int) -> str:
    import signal

    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _where(url: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return f"Redis at {parts.hostname}:{parts.port or 6379}" if parts.hostname else f"Redis at {parts.path}"
