"""One engine and one checker for all starters: each pays for the engine's import once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from runtime.engine.base import RunOutput, RunRequest
from runtime.engine.check import check_flows
from runtime.engine.langflow import LangflowEngine
from runtime.engine.report import FlowReport
from runtime.errors import EngineError, Fault
from shared_models.result import RunEventType
from tests.support.offline import Offline
from tests.support.provider import StubProvider
from tests.support.starters import INPUT, export_of, starter_source, starters, with_models

MODES = ("without", "within")
"""Without a session, so without chat memory; and within one."""

HERE = Path(__file__).parent
KEY = "stub-key"


@dataclass(frozen=True)
class Ran:
    """What became of one starter in our engine."""

    output: RunOutput | None
    fault: EngineError | Fault | None
    built: tuple[str, ...]
    reached_at_load: frozenset[str]
    reached_at_run: frozenset[str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the engine's packages warn of is not ours to mend."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def offline() -> Iterator[Offline]:
    """No network for the whole of this process, while the starters are tested."""
    with Offline().guard() as guard:
        yield guard


@pytest.fixture(scope="session")
def reports() -> Mapping[str, FlowReport]:
    """The verdict on every starter as it is shipped, in an environment without any key."""
    bare = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    sources = [starter_source(route) for route in starters()]
    return {report.route: report for report in check_flows(sources, environ=bare)}


@pytest.fixture(scope="session")
def provider() -> Iterator[StubProvider]:
    """The model server that the flows call."""
    stub = StubProvider()
    stub.start()
    yield stub
    stub.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(offline: Offline) -> AsyncIterator[LangflowEngine]:
    """Our engine, prepared once."""
    offline.taken()
    made = LangflowEngine()
    await made.prepare(concurrency=4)
    assert offline.taken() == frozenset(), "the engine reaches for the network when it starts"
    yield made
    await made.close()


def model_name(route: str, mode: str) -> str:
    """A model's name by which its provider can tell the flow that calls it."""
    return f"{route}.{mode}"


class NoHistory:
    """Sessions without a past."""

    async def load(self, session: str) -> list[Mapping[str, Any]]:
        return []


class Runner:
    """Runs a starter once and remembers what became of it, for every test that asks."""

    def __init__(self, engine: LangflowEngine, offline: Offline, provider: StubProvider) -> None:
        self._engine = engine
        self._offline = offline
        self._provider = provider
        self._ran: dict[tuple[str, str], Ran] = {}

    async def run(self, route: str, mode: str = "without") -> Ran:
        if (route, mode) not in self._ran:
            self._ran[route, mode] = await self._run(route, mode)
        return self._ran[route, mode]

    async def once(self, route: str, payload: Mapping[str, Any], *, folder: Path | None = None) -> RunOutput:
        """One run of its own, with a payload."""
        flow = await self._engine.load(starter_source(route, with_models(export_of(route), name=route), folder=folder))
        return await self._engine.run(flow, self._request(route, payload), NoHistory(), lambda *_: None)

    def _request(self, route: str, payload: Mapping[str, Any], session: str | None = None) -> RunRequest:
        variables = {"OPENAI_COMPATIBLE_BASE_URL": self._provider.url, "OPENAI_COMPATIBLE_API_KEY": KEY}
        return RunRequest(event_id=f"event-{route}", payload=payload, session_id=session, variables=variables)

    async def _run(self, route: str, mode: str) -> Ran:
        built: set[str] = set()
        self._offline.taken()
        at_load: frozenset[str] = frozenset()

        def emit(kind: RunEventType, data: Mapping[str, Any]) -> None:
            if kind is RunEventType.COMPONENT_ENDED:
                built.add(str(data["component_id"]))

        source = starter_source(route, with_models(export_of(route), name=model_name(route, mode)))
        try:
            flow = await self._engine.load(source)
            at_load = self._offline.taken()
            request = self._request(route, {"input_value": INPUT}, route if mode == "within" else None)
            output = await asyncio.wait_for(self._engine.run(flow, request, NoHistory(), emit), 60)
        except (EngineError, Fault) as fault:
            return Ran(None, fault, tuple(sorted(built)), at_load, self._offline.taken())
        return Ran(output, None, tuple(sorted(built)), at_load, self._offline.taken())


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def runner(engine: LangflowEngine, offline: Offline, provider: StubProvider) -> Runner:
    """Runs starters in our engine."""
    return Runner(engine, offline, provider)
