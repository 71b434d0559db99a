"""What chaos is done to: a server with its file, workers each behind a proxy, flows, and a record of every harm."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from tests.chaos.events import ROUTES, Producer
from tests.chaos.pods import Pod, boot
from tests.chaos.proxy import Proxy
from tests.support import flows
from tests.support.harness import ECHO_FLOW, write_flow
from tests.support.servers import RedisServer

LEASE = 2.0
MAX_ATTEMPTS = 3
TIMEOUT = 4.0
"""Seconds of a route's own timeout."""

WORKER: Mapping[str, Any] = {
    "lease": LEASE, "sweep_interval": 0.3, "reconcile_interval": 0.5, "audit_interval": 2.0, "poll_interval": 0.2,
    "grace": 2.0, "hang_timeout": 3.0, "concurrency": 8, "processes": 2,
}  # fmt: skip

SPEC: Mapping[str, Any] = {
    "timeout": f"{TIMEOUT:g}s",
    "retry": {"max_attempts": MAX_ATTEMPTS, "initial": "20ms", "max": "200ms"},
    # The results are read before a FLUSHALL and at the end only: all of them must still be there.
    "results": {"keep": 10_000_000},
}

COMPONENT = """
from lfx.custom.custom_component.component import Component
from lfx.io import MessageTextInput, Output
from lfx.schema.message import Message


class Chaotic(Component):
    display_name = "Chaotic"
    inputs = [MessageTextInput(name="text", display_name="Text")]
    outputs = [Output(name="out", display_name="Out", method="work")]

    async def work(self) -> Message:
        import asyncio, json, os, time
        asked = json.loads(self.text)

        def write(what):
            line = {"what": what, "event": asked["event"], "attempt": 0, "pid": os.getpid(),
                    "at": time.clock_gettime(time.CLOCK_BOOTTIME)}
            descriptor = os.open(asked["ledger"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                os.write(descriptor, json.dumps(line).encode() + b"\\n")
            finally:
                os.close(descriptor)

        write("start")
        try:
            if asked.get("exit"):
                os._exit(9)
            if asked.get("fail_first"):
                # A component is not told which attempt it is: it counts what the world has seen.
                with open(asked["ledger"]) as ledger:
                    seen = sum(f'"failed", "event": "{asked["event"]}"' in line for line in ledger)
                if seen < asked["fail_first"]:
                    raise RuntimeError("asked to fail")
            until = time.monotonic() + asked.get("block", 0)
            while time.monotonic() < until:
                time.sleep(0.05)
            await asyncio.sleep(asked.get("sleep", 0))
        except asyncio.CancelledError:
            write("cancelled")
            raise
        except Exception:
            write("failed")
            raise
        write("end")
        return Message(text="done")
"""


@dataclass(frozen=True, slots=True)
class Harm:
    """What was done, to whom (None: to everybody), from when to when."""

    kind: str
    pod: str | None
    pid: int | None
    began: float
    ended: float


@dataclass
class Epoch:
    """What Redis held between two losses of its data: ids of events by route, times of the boot clock."""

    began: float
    asked: float = float("inf")
    """When the FLUSHALL was sent that ended it."""
    ended: float = float("inf")
    results: dict[str, list[str]] = field(default_factory=dict)
    letters: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Event and code."""
    deaths: dict[str, float] = field(default_factory=dict)
    """When a consumer was declared dead on a route: by "route/consumer"."""


@dataclass
class Seat:
    """One worker's place: its proxy stays while workers come and go."""

    number: int
    proxy: Proxy
    pod: Pod
    generation: int = 0


class World:
    """The whole set-up of one run."""

    def __init__(self, binary: str, *, engine: str, workers: int, say: Callable[[str], None]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
        self.server = RedisServer(binary, persistent=True, config=("--enable-debug-command", "yes"))
        self.say = say
        self.engine = engine
        self.seats: list[Seat] = []
        self.pods: list[Pod] = []
        self.harms: list[Harm] = []
        self.kills: list[tuple[str, int, float]] = []
        """``child`` or ``worker``, the pid, when."""
        self.epochs: list[Epoch] = []
        self.leases: dict[str, list[tuple[float, float]]] = {}
        """By "route/consumer", as seen over time: when, and the end of its lease, or minus the time of its death."""
        self.problems: list[str] = []
        self.producer: Producer | None = None
        self.server_turn = asyncio.Lock()
        self._workers = workers
        # The server is killed with the thread that started it: one thread for all of the run.
        self._thread = ThreadPoolExecutor(1, "chaos-server")
        self._drift = time.time() - boot()
        self._swaps = 0

    # --- from start to end ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the server and the workers, and wait until all read."""
        await self.on_thread(self.server.start)
        self.epochs.append(Epoch(boot()))
        self.swap()
        for number in range(self._workers):
            proxy = await Proxy(self.server.port).start()
            self.seats.append(Seat(number, proxy, self._new_pod(number, 0, proxy)))
        for seat in self.seats:
            await self.until(lambda seat=seat: seat.pod.reading, 60, f"{seat.pod.name} reads")

    async def close(self, *, keep: bool) -> None:
        """End everything that this has started."""
        for pod in self.pods:
            pod.close()
        for seat in self.seats:
            await seat.proxy.close()
        await self.on_thread(self.server.close)
        self._thread.shutdown()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def on_thread(self, work: Callable[[], Any]) -> Any:
        """Run what blocks, and owns the server."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def until(self, ready: Callable[[], Any], timeout: float, what: str) -> bool:
        """Look until something is so. A problem, if it is not in time."""
        deadline = boot() + timeout
        while not ready():
            if boot() > deadline:
                self.problems.append(f"not within {timeout:g} s: {what}")
                return False
            await asyncio.sleep(0.05)
        return True

    # --- workers ----------------------------------------------------------------------------------------------------

    def _new_pod(self, number: int, generation: int, proxy: Proxy) -> Pod:
        pod = Pod(f"w{number}-{generation}", proxy.url, self.folder, engine=self.engine, worker=WORKER)
        self.pods.append(pod)
        return pod

    def replace(self, seat: Seat) -> Pod:
        """Start another worker on a seat."""
        seat.generation += 1
        seat.pod = self._new_pod(seat.number, seat.generation, seat.proxy)
        return seat.pod

    def harm(self, kind: str, began: float, *, pod: Pod | None = None, pid: int | None = None, to: float = 0.0) -> None:
        """Note what was done; its end is now unless told."""
        self.harms.append(Harm(kind, pod.name if pod else None, pid, began, to or boot()))

    def watch(self) -> None:
        """Notice workers that ended though nobody told them to, and replace them."""
        for seat in self.seats:
            if seat.pod.code is not None and not seat.pod.asked_to_end:
                self.problems.append(f"{seat.pod.name} ended by itself with code {seat.pod.code}")
                self.harm("ended", boot(), pod=seat.pod)
                self.replace(seat)

    # --- flows ------------------------------------------------------------------------------------------------------

    def swap(self) -> None:
        """Write every flow anew, as another version."""
        self._swaps += 1
        for name in ROUTES:
            export = _chaotic(name) if self.engine == "langflow" else dict(ECHO_FLOW)
            export["description"] = f"version {self._swaps}"
            write_flow(self.folder / "flows", name, export, SPEC if self._swaps == 1 else None)

    # --- what Redis holds -------------------------------------------------------------------------------------------

    def client(self) -> redis.Redis:
        """A connection past every proxy."""
        return redis.Redis(port=self.server.port, decode_responses=True, socket_timeout=20)

    async def note_leases(self) -> None:
        """Look at the leases again and again: what a worker held at a time can be told only by who looked then."""
        while True:
            with suppress(redis.RedisError, OSError):
                await asyncio.to_thread(self._note_leases)
            await asyncio.sleep(0.1)

    def _note_leases(self) -> None:
        with self.client() as client:
            pipe = client.pipeline(transaction=False)
            for keys in ROUTES.values():
                pipe.zrange(keys.leases, 0, -1, withscores=True)
            replies = pipe.execute()
        now = boot()
        for route, reply in zip(ROUTES, replies, strict=True):
            for name, score in reply:
                seen = self.leases.setdefault(f"{route}/{name}", [])
                at = score / 1000 - self._drift if score >= 0 else score / 1000 + self._drift
                if not seen or seen[-1][1] != at:
                    seen.append((now, at))

    def harvest(self, *, flush: bool) -> Epoch:
        """Note what Redis holds for the epoch; with ``flush`` take it all away in the same transaction."""
        epoch = self.epochs[-1]
        with self.client() as client:
            pipe = client.pipeline(transaction=True)
            for keys in ROUTES.values():
                pipe.xrange(f"{keys.stream}:results")
                pipe.xrange(f"{keys.stream}:dead_letter")
                pipe.zrange(keys.leases, 0, -1, withscores=True)
            if flush:
                pipe.flushall()
                epoch.asked = boot()
            replies = pipe.execute()
        epoch.ended = boot()
        for number, route in enumerate(ROUTES):
            results, letters, leases = replies[3 * number : 3 * number + 3]
            epoch.results[route] = [fields["parent_id"] for _, fields in results]
            epoch.letters[route] = [(fields["dl_event_id"], fields["dl_code"]) for _, fields in letters]
            dead = {name: -score / 1000 - self._drift for name, score in leases if score < 0}
            epoch.deaths.update({f"{route}/{name}": at for name, at in dead.items()})
        if flush:
            self.epochs.append(Epoch(boot()))
        return epoch

    def busy(self) -> set[int]:
        """Pids that run something, as far as the end of the ledger tells."""
        path = self.folder / "ledger"
        if not path.exists():
            return set()
        with path.open("rb") as ledger:
            ledger.seek(max(0, path.stat().st_size - 65536))
            lines = [json.loads(line) for line in ledger.read().splitlines()[1:] if line.endswith(b"}")]
        open_runs: dict[tuple[str, int], bool] = {}
        for line in lines:
            open_runs[line["event"], line["pid"]] = line["what"] == "start"
        return {pid for (_, pid), runs in open_runs.items() if runs}

    def ledger(self) -> list[dict[str, Any]]:
        """What the runs did."""
        path = self.folder / "ledger"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _chaotic(name: str) -> dict[str, Any]:
    made = flows.Flow(name)
    chat_in = made.add("ChatInput", "ChatInput-in")
    custom = made.custom(COMPONENT, "Chaotic-it")
    chat_out = made.add("ChatOutput", "ChatOutput-out")
    made.connect(chat_in, "message", custom, "text")
    made.connect(custom, "out", chat_out, "input_value")
    return made.export()
