"""``headrace up``: a Valkey, a worker and a gateway. When one ends by itself, all end, and it says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.gateway import Host
from runtime.cli.options import Flows, RedisUrl, wait_for
from runtime.cli.output import FAILED, note, say

if TYPE_CHECKING:
    import asyncio

    from runtime.broker.embedded import EmbeddedValkey
    from runtime.cli.part import Part
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
    host: Host = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            min=0,
            max=65535,
            help="The gateway's. Default: 8800, or a free one where that is taken.",
            show_default=False,
        ),
    ] = None,
    no_gateway: Annotated[bool, typer.Option("--no-gateway", help="Start no HTTP gateway.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Send an event through each branch of the example.")] = False,
    exit_after_demo: Annotated[bool, typer.Option("--exit-after-demo", help="End when the demo has ended.")] = False,
    engine: Annotated[str, typer.Option("--engine", hidden=True)] = "langflow",
) -> None:
    """Start everything: an embedded Valkey (unless a Redis is given), a worker and a gateway. Ctrl-C ends them cleanly.

    The Redis is --redis-url, HEADRACE_REDIS__URL or REDIS_URL if one of them is set.
    """
    from runtime.cli.connection import read_settings
    from runtime.telemetry import outlet

    outlet.guard()  # its terminal may close before it has drained
    settings = read_settings()
    settings = settings.model_copy(update={"flows": flows or settings.flows, "data": data or settings.data})
    gateway = None if no_gateway else gateway_words(settings, host, port)
    whole = Whole(settings, engine=engine, gateway=gateway, demo=demo or exit_after_demo, stay=not exit_after_demo)
    raise typer.Exit(wait_for(whole.run(redis_url)))


def gateway_words(settings: Settings, host: str | None, port: int | None) -> list[str] | None:
    """The command line of the gateway; None where it is not installed, which is said."""
    from importlib.util import find_spec

    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        note("no HTTP gateway: it is not installed here (headrace[gateway])")
        return None
    words = ["gateway"]
    if host is not None:
        words += ["--host", host]
    if port is not None:
        words += ["--port", str(port)]
    # A second `headrace up` on a machine finds the usual port taken; one that was asked for is meant.
    elif "port" not in settings.gateway.model_fields_set:
        words.append("--or-free")
    return words


class Whole:
    """The parts of `headrace up`, and what ends them: a signal, or the end of one of them."""

    def __init__(self, settings: Settings, *, engine: str, gateway: list[str] | None, demo: bool, stay: bool) -> None:
        self._settings = settings
        self._engine = engine
        self._gateway_words = gateway
        self._demo = demo
        self._stay = stay
        self._valkey: EmbeddedValkey | None = None
        self._worker: Part | None = None
        self._gateway: Part | None = None

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
        if self._stop.is_set() and self._worker is not None and self._worker.alive:
            note("headrace: asked twice: the worker drops what it runs")
            for part in (self._gateway, self._worker):
                if part is not None:
                    part.terminate()
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
        await self._start_parts(url)
        ends = {
            "stop": asyncio.create_task(self._stop.wait(), name="up-stop"),
            "worker": asyncio.create_task(self._ended(self._worker), name="up-worker"),
            "gateway": asyncio.create_task(self._ended(self._gateway), name="up-gateway"),
            "valkey": asyncio.create_task(self._valkey_gone(), name="up-valkey"),
        }
        story = asyncio.create_task(self._story(url), name="up-story")
        try:
            await asyncio.wait([*ends.values(), story], return_when=asyncio.FIRST_COMPLETED)
            if story.done() and (not self._stay or story.exception()):
                return 0 if await story else FAILED
            await asyncio.wait(ends.values(), return_when=asyncio.FIRST_COMPLETED)
            return self._verdict(ends)
        finally:
            for task in (story, *ends.values()):
                task.cancel()
            await asyncio.gather(story, *ends.values(), return_exceptions=True)
            await self._end_parts()

    def _shared(self, url: str) -> dict[str, str]:
        """What the worker and the gateway have to agree on: Redis, and where large payloads and files are kept."""
        from importlib.util import find_spec

        found = {"HEADRACE_REDIS__URL": url}
        if self._settings.archive.url is None and find_spec("obstore") is not None:
            found["HEADRACE_ARCHIVE__URL"] = (self._settings.data.absolute() / "archive").as_uri()
        return found

    def _verdict(self, ends: dict[str, asyncio.Task[Any]]) -> int:
        if ends["stop"].done():
            say("draining: what runs is finished, then everything ends")
            return 0
        for name in ("worker", "gateway"):
            if ends[name].done():
                code: int = ends[name].result()
                note(f"headrace: the {name} has ended by itself ({_how(code)}); so everything ends")
                return code if code > 0 else FAILED
        note(f"headrace: Valkey has ended by itself (see the log in {self._settings.data}); so everything ends")
        return FAILED

    async def _ended(self, part: Part | None) -> int:
        """The exit code of a part when it has ended; never returns where there is none."""
        import asyncio

        if part is None:
            await asyncio.Event().wait()
            raise AssertionError
        return await part.ended()

    async def _valkey_gone(self) -> None:
        """Returns when the embedded server has ended; never where there is none."""
        import asyncio

        while self._valkey is None or self._valkey.alive():  # noqa: ASYNC110  it is another process: only asking tells
            await asyncio.sleep(1.0)

    async def _start_parts(self, url: str) -> None:
        from runtime.cli.part import Part

        words = ["worker", "--flows", str(self._settings.flows), "--engine", self._engine]
        self._worker = await Part.start("worker", words, self._shared(url))
        if self._gateway_words is not None:
            self._gateway = await Part.start("gateway", self._gateway_words, self._shared(url))

    async def _story(self, url: str) -> bool:
        """Wait for the parts, say that all is ready, run the demo if asked. Whether the demo went well."""
        assert self._worker is not None  # noqa: S101  it was started before
        report = json.loads(await self._worker.ready())
        http = (await self._gateway.ready()).decode() if self._gateway else None
        self._say_ready(url, report, http)
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

    def _say_ready(self, url: str, report: dict[str, Any], http: str | None) -> None:
        from runtime.cli.ready import say_ready

        ready, folder = report["ready"], self._settings.flows
        say_ready(report, more=f" in {folder}, {_where(url)}")
        if ready:
            say(f"  routes: {', '.join(ready)}")
            example = "hello" if "hello" in ready else ready[0]
            say(f'  send:   headrace send {example} --input "hello" --wait 30')
            if http:
                say(f"  http:   curl '{http}/v1/routes/{example}/events?wait=30s' -d '{{\"input_value\": \"hello\"}}'")
        else:
            say(f"  drop an exported flow into {folder}; it is picked up at once")
        say("  look:   headrace status, headrace runs list, headrace dlq list" + (f", {http}/docs" if http else ""))
        sys.stdout.flush()

    async def _end_parts(self) -> None:
        """Drain the gateway and the worker, both at once: what is accepted lies in the stream."""
        import asyncio

        from runtime.worker import deadlines

        ends = []
        if self._gateway is not None:
            seconds = self._settings.gateway.grace + deadlines.MARGIN
            ends.append(self._gateway.end(seconds, "its clients have lost their connections"))
        if self._worker is not None:
            seconds = deadlines.of_up(self._settings.worker.grace)
            ends.append(self._worker.end(seconds, "its entries go to the next worker"))
        await asyncio.gather(*ends)


def _how(code: int) -> str:
    import signal

    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _where(url: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return f"Redis at {parts.hostname}:{parts.port or 6379}" if parts.hostname else f"Redis at {parts.path}"
