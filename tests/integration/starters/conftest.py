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
from tests.support.offline import Offline
from tests.support.provider import StubProvider
from tests.support.starters import INPUT, export_of, starter_source, starters, with_models

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


def provider_environment(url: str) -> dict[str, str]:
    """The environment in which flows may call the stub."""
    return {
        "OPENAI_COMPATIBLE_BASE_URL": url,
        "OPENAI_COMPATIBLE_API_KEY": KEY,
        "LANGFLOW_SSRF_ALLOWED_HOSTS": "127.0.0.2",
        "LANGFLOW_PROVIDER_CREDENTIAL_ALLOWED_HOSTS": "127.0.0.2",
    }


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


@pytest.fixture(scope="session")
def stock(stock_provider: StubProvider, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Every starter that can complete, run by the stock engine in a process of its own."""
    from tests.integration.starters.expected import COMPLETE

    folder = tmp_path_factory.mktemp("stock")
    for route in COMPLETE:
        export = with_models(export_of(route), route=route)
        (folder / f"{route}.json").write_text(json.dumps(export))
    environ = {
        **os.environ,
        **provider_environment(stock_provider.url),
        "LANGFLOW_CONFIG_DIR": str(tmp_path_factory.mktemp("stock-state")),
        "DO_NOT_TRACK": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, str(HERE / "stock.py"), str(folder), INPUT]
    done = subprocess.run(command, env=environ, capture_output=True, timeout=STOCK_DEADLINE, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    results: dict[str, Any] = json.loads(done.stdout)
    return results


@pytest.fixture(scope="session")
def our_provider() -> Iterator[StubProvider]:
    """The model server that our engine calls."""
    stub = StubProvider()
    stub.start()
    yield stub
    stub.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(offline: Offline, our_provider: StubProvider) -> AsyncIterator[LangflowEngine]:
    """Our engine, prepared once."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in provider_environment(our_provider.url).items():
            patch.setenv(name, value)
        made = LangflowEngine()
        await made.prepare(concurrency=4)
        assert offline.taken() == frozenset(), "the engine reaches for the network when it starts"
        yield made
        await made.close()


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
        self._ran: dict[str, Ran] = {}

    async def run(self, route: str) -> Ran:
        if route not in self._ran:
            self._ran[route] = await self._run(route)
        return self._ran[route]

    async def once(self, route: str, payload: Mapping[str, Any], *, folder: Path | None = None) -> RunOutput:
        """One run of its own, with a payload."""
        source = starter_source(route, with_models(export_of(route), route=route), folder=folder)
        flow = await self._engine.load(source)
        return await self._engine.run(flow, self._request(route, payload), NoHistory(), lambda *_: None)

    def _request(self, route: str, payload: Mapping[str, Any]) -> RunRequest:
        variables = {"OPENAI_COMPATIBLE_BASE_URL": self._provider.url, "OPENAI_COMPATIBLE_API_KEY": KEY}
        return RunRequest(
            event_id=f"event-{route}", payload=payload, session_id=f"session-{route}", variables=variables
        )

    async def _run(self, route: str) -> Ran:
        built: list[str] = []
        self._offline.taken()
        at_load: frozenset[str] = frozenset()

        def emit(kind: RunEventType, data: Mapping[str, Any]) -> None:
            if kind is RunEventType.COMPONENT_ENDED:
                built.append(str(data["component_id"]))

        source = starter_source(route, with_models(export_of(route), route=route))
        try:
            flow = await self._engine.load(source)
            at_load = self._offline.taken()
            request = self._request(route, {"input_value": INPUT})
            output = await asyncio.wait_for(self._engine.run(flow, request, NoHistory(), emit), 60)
        except (EngineError, Fault) as fault:
            return Ran(None, fault, tuple(sorted(set(built))), at_load, self._offline.taken())
        return Ran(output, None, tuple(sorted(set(built))), at_load, self._offline.taken())


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def runner(engine: LangflowEngine, offline: Offline, our_provider: StubProvider) -> Runner:
    """Runs starters in our engine."""
    return Runner(engine, offline, our_provider)


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?( ?UTC|[+-]\d\d:?\d\d)?")


def asked(provider: StubProvider, route: str) -> list[dict[str, Any]]:
    """What a flow asked its model, call by call, without what differs from run to run."""
    kept = ("messages", "tools", "temperature", "max_tokens", "response_format", "tool_choice")
    calls = [call.body for call in provider.chats if call.body.get("model") == route]
    return [json.loads(_MOMENT.sub("<time>", json.dumps({key: call.get(key) for key in kept}))) for call in calls]
