"""One engine, one checker and one stock process for all starters: each pays for the engine's import once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
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
from tests.integration.starters.expected import COMPLETE
from tests.support.offline import Offline
from tests.support.provider import StubProvider
from tests.support.starters import INPUT, export_of, starter_source, starters, with_models

MODES = ("without", "within")
"""Without a session, so without chat memory; and within one."""

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
KEY = "stub-key"
STOCK_DEADLINE = 240.0


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
def stock_provider() -> Iterator[StubProvider]:
    """The model server that the stock engine calls."""
    stub = StubProvider()
    stub.start()
    yield stub
    stub.stop()


class Stock:
    """The stock engine in a process of its own, beside our tests of ours: two cores, half the time."""

    def __init__(self, folder: Path, url: str) -> None:
        self._output, self._log = folder / "results.json", folder / "log.txt"
        environ = {
            **os.environ,
            "OPENAI_COMPATIBLE_BASE_URL": url,
            "OPENAI_COMPATIBLE_API_KEY": KEY,
            "LANGFLOW_SSRF_ALLOWED_HOSTS": "127.0.0.2",  # else a key from the environment is not sent there
            "LANGFLOW_CONFIG_DIR": str(folder),
            "LANGFLOW_DATABASE_URL": f"sqlite:///{folder}/langflow.db",
            "LANGFLOW_VERTEX_BUILDS_STORAGE_ENABLED": "false",
            "LANGFLOW_TRANSACTIONS_STORAGE_ENABLED": "false",
            "DO_NOT_TRACK": "true",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, str(HERE / "stock.py"), str(folder / "flows"), INPUT]
        with self._output.open("wb") as output, self._log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environ, stdout=output, stderr=log)

    def results(self) -> Mapping[str, Mapping[str, Any]]:
        """Every flow's outcome by mode and route, once all are done."""
        code = self.process.wait(STOCK_DEADLINE)
        assert code == 0, self._log.read_text()[-4000:]
        results: dict[str, Any] = json.loads(self._output.read_text())
        return results


@pytest.fixture(scope="session")
def stock_engine(stock_provider: StubProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    """Starts the stock engine on every starter that can complete."""
    folder = tmp_path_factory.mktemp("stock")
    for mode in MODES:
        (folder / "flows" / mode).mkdir(parents=True)
        for route in COMPLETE:
            export = with_models(export_of(route), name=model_name(route, mode))
            (folder / "flows" / mode / f"{route}.json").write_text(json.dumps(export))
    stock = Stock(folder, stock_provider.url)
    yield stock
    stock.process.kill()
    stock.process.wait()


@pytest.fixture(scope="session")
def stock(stock_engine: Stock) -> Mapping[str, Mapping[str, Any]]:
    """What the stock engine made of the starters: by mode, by route."""
    return stock_engine.results()


@pytest.fixture(scope="session")
def our_provider() -> Iterator[StubProvider]:
    """The model server that our engine calls."""
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
async def runner(stock_engine: Stock, engine: LangflowEngine, offline: Offline, our_provider: StubProvider) -> Runner:
    """Runs starters in our engine, while the stock engine runs them too."""
    return Runner(engine, offline, our_provider)


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?( ?UTC|[+-]\d\d:?\d\d)?")


def asked(provider: StubProvider, route: str, mode: str) -> list[dict[str, Any]]:
    """What a flow asked its model, call by call, without what differs from run to run.

    The order of an agent's tools does: the engine takes it from sets of ids, so it hangs on the process's hash seed.
    """
    kept = ("messages", "temperature", "max_tokens", "response_format", "tool_choice")
    calls = [call.body for call in provider.chats if call.body.get("model") == model_name(route, mode)]
    asked = []
    for call in calls:
        tools = sorted(call.get("tools") or [], key=lambda tool: tool["function"]["name"])
        words = json.dumps({**{key: call.get(key) for key in kept}, "tools": tools})
        asked.append(json.loads(_MOMENT.sub("<time>", words)))
    return asked
