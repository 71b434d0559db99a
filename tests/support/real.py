"""The real engine for acceptance tests: imported once (it takes seconds), given to every worker of the session.

A module that uses it says ``pytestmark = REAL``: all its tests run on the session's loop, to which what the engine
keeps (HTTP clients, the thread pool) belongs.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import certifi
import pytest
import pytest_asyncio

from runtime.broker.keys import RouteKeys
from runtime.engine.base import ChatHistory, Emit, FlowSource, LoadedFlow, RunOutput, RunRequest
from runtime.engine.langflow import LangflowEngine
from shared_models.result import RunRecord
from tests.support.flows import Flow
from tests.support.harness import DEADLINE, Client, write_flow

REAL = [
    pytest.mark.asyncio(loop_scope="session"),
    # What the engine's packages warn of is not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]

SLOTS = 64


class SharedEngine:
    """One LangflowEngine for many workers, one after the other or side by side: it is prepared and closed once.

    A test can wait for a load: it is the sign that a change of a file has been seen.
    """

    def __init__(self) -> None:
        self.inner = LangflowEngine()
        self._count: Counter[str] = Counter()
        self._loaded = asyncio.Condition()
        self._prepared = False

    async def loaded(self, route: str, *, times: int, timeout: float = DEADLINE) -> None:
        """Wait until a route's flow was loaded so many times since ``forget_loads``."""
        async with asyncio.timeout(timeout), self._loaded:
            await self._loaded.wait_for(lambda: self._count[route] >= times)

    def forget_loads(self) -> None:
        """Count anew."""
        self._count.clear()

    def loads(self, route: str) -> int:
        """How often a route's flow was loaded."""
        return self._count[route]

    async def prepare(self, *, concurrency: int) -> None:
        if not self._prepared:
            self._prepared = True
            await self.inner.prepare(concurrency=SLOTS)

    async def load(self, source: FlowSource) -> LoadedFlow:
        try:
            return await self.inner.load(source)
        finally:
            async with self._loaded:
                self._count[source.route] += 1
                self._loaded.notify_all()

    async def run(self, flow: LoadedFlow, request: RunRequest, history: ChatHistory, emit: Emit) -> RunOutput:
        return await self.inner.run(flow, request, history, emit)

    def set_siblings(self, sources: Mapping[str, FlowSource]) -> None:
        self.inner.set_siblings(sources)

    async def close(self) -> None:
        """Other workers may still need it."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedEngine]:
    """The engine, ready, once for the session. Use ``engine``."""
    with pytest.MonkeyPatch.context() as patch:
        # The stub provider speaks plain HTTP. For each of its clients the engine would read 140 certificates anyway,
        # which takes longer than all the rest of a run.
        bundle = Path(certifi.where()).read_text(encoding="utf-8")
        one = tmp_path_factory.mktemp("certificates") / "one.pem"
        one.write_text(bundle[bundle.index("-----BEGIN") : bundle.index("-----END")] + "-----END CERTIFICATE-----\n")
        patch.setenv("SSL_CERT_FILE", str(one))
        made = SharedEngine()
        await made.prepare(concurrency=SLOTS)
        yield made
        await made.inner.close()


@pytest.fixture
def engine(shared_engine: SharedEngine) -> SharedEngine:
    """The engine."""
    shared_engine.forget_loads()
    return shared_engine


@pytest.fixture(scope="module", autouse=True)
def no_litter() -> Iterator[None]:
    """Collect what runs left behind while the module's own filter for warnings holds.

    A model component's HTTP clients close their sockets when they are collected, with a ResourceWarning. Later, that
    would be an error in a test of somebody else.
    """
    yield
    gc.collect()


def put(folder: Path, name: str, flow: Flow, **spec: Any) -> RouteKeys:
    """Drop a flow and its route spec into a flows folder; the route's keys."""
    write_flow(folder, name, flow.export(), spec or None)
    return RouteKeys(spec.get("stream", f"flows:{name}"), spec.get("group", "headrace"))


async def runs(c: Client, keys: RouteKeys, events: Sequence[str], *, timeout: float = DEADLINE) -> list[RunRecord]:
    """The records of some events, in order, once all have ended."""
    return [await c.run(keys, event, timeout=timeout) for event in events]


async def text(c: Client, keys: RouteKeys, payload: Mapping[str, Any], **fields: Any) -> str:
    """Send an event; the primary text of its result. Fails with the dead letter's reason where there is none."""
    event = await c.send(keys.stream, payload, **fields)
    run = await c.run(keys, event)
    assert run.result is not None and run.result.text is not None, run
    return run.result.text


async def until(ready: Callable[[], Any], *, timeout: float = DEADLINE, every: float = 0.02) -> Any:
    """Look until ``ready`` (or what it awaits) is something true, and return it. For what has no signal of its own."""
    async with asyncio.timeout(timeout):
        while True:
            found = ready()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(every)
