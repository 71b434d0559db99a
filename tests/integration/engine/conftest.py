"""One prepared engine for all tests here: its import takes seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from runtime.engine.accelerators import classes
from runtime.engine.base import FlowSource, LoadedFlow, RunOutput, RunRequest
from runtime.engine.langflow import LangflowEngine
from shared_models.result import RunEventType
from tests.support import flows
from tests.support.history import Sessions
from tests.support.prototypes import prototypes_at_once
from tests.support.provider import StubProvider, provider, stub_server

__all__ = ["provider", "stub_server"]

DEADLINE = 60.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here runs on the engine's loop; what the engine's packages warn of is not ours to mend."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def files_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose files events may name."""
    return tmp_path_factory.mktemp("event-files")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(files_root: Path) -> AsyncIterator[LangflowEngine]:
    """The engine."""
    made = LangflowEngine(file_roots=[files_root])
    await made.prepare(concurrency=20)
    with prototypes_at_once():
        yield made
    await made.close()


@dataclass
class Told:
    """What a run emitted."""

    events: list[tuple[RunEventType, Mapping[str, Any]]] = field(default_factory=list)

    def __call__(self, kind: RunEventType, data: Mapping[str, Any]) -> None:
        self.events.append((kind, data))

    def of(self, kind: RunEventType) -> list[Mapping[str, Any]]:
        """The data of the events of a kind."""
        return [data for k, data in self.events if k is kind]


class Runner:
    """Runs flows: loads each once."""

    def __init__(self, engine: LangflowEngine, provider: StubProvider) -> None:
        self.engine = engine
        self.provider = provider
        self.history = Sessions()
        self.told = Told()
        self._loaded: dict[str, LoadedFlow] = {}

    async def load(self, flow: flows.Flow | FlowSource | Mapping[str, Any]) -> LoadedFlow:
        """The flow, loaded."""
        source = flow if isinstance(flow, FlowSource) else flows.source(flow)
        if source.version not in self._loaded:
            self._loaded[source.version] = await self.engine.load(source)
        return self._loaded[source.version]

    async def __call__(
        self,
        flow: flows.Flow | FlowSource | Mapping[str, Any],
        text: str | None = None,
        *,
        payload: Mapping[str, Any] | None = None,
        model: bool = True,
        variables: Mapping[str, str] | None = None,
        **request: Any,
    ) -> RunOutput:
        """Run a flow with a text or a payload; ``model`` gives it the stub provider's address."""
        loaded = await self.load(flow)
        given = dict(payload if payload is not None else {"input_value": text or ""})
        known = {"OPENAI_COMPATIBLE_BASE_URL": self.provider.url} if model else {}
        made = RunRequest(event_id="event-1", payload=given, variables={**known, **(variables or {})}, **request)
        async with asyncio.timeout(DEADLINE):
            output = await self.engine.run(loaded, made, self.history, self.told)
        self.history.commit(output.chat)
        return output

    async def text(
        self, flow: flows.Flow | FlowSource | Mapping[str, Any], text: str | None = None, **more: Any
    ) -> str:
        """The primary text of a run."""
        output = await self(flow, text, **more)
        assert output.result.text is not None
        return output.result.text


@pytest.fixture
def run(engine: LangflowEngine, provider: StubProvider, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    """Runs flows on the engine. A class that a test's run has changed is refused to that test, and to no other."""
    engine.set_siblings({})
    if (cache := classes._Installed.cache) is not None:
        monkeypatch.setattr(cache, "refused", cache.refused.copy())
    yield Runner(engine, provider)
    engine.set_siblings({})


def ids(outputs: Sequence[Any]) -> list[str]:
    """The components of some outputs."""
    return [output.id for output in outputs]
