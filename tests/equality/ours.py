"""Our engine, in a process of its own, under one set of accelerators after the other.

``python -m tests.equality.ours PLAN FOLDER`` appends to ``FOLDER/outcomes.json`` a line for each set: ``{"set": name,
"routes": {route: {run: outcome, "files": {path: hash}, "verdict": [type, text] or null, "kept": bool}}}``; ``kept``
tells of a set with ``shipped`` whether the class of the flow's own component was used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from runtime.engine.accelerators import classes
from runtime.engine.base import FlowSource, RunRequest
from runtime.engine.langflow import LangflowEngine
from runtime.errors import Fault
from shared_models.errors import HeadraceError
from tests.equality import answers, outcome
from tests.equality.plan import RUNS, Case, Plan, Run, Set
from tests.support.history import Sessions
from tests.support.offline import Offline
from tests.support.prototypes import prototypes_at_once
from tests.support.provider import StubProvider

DEADLINE = 60.0


@dataclass
class Seen:
    """What a RunOutput does not tell of a run: its state, its graph, and what that held before it was taken apart."""

    state: Any = None
    graph: Any = None
    told: outcome.Outcome | None = None


SEEN: ContextVar[Seen] = ContextVar("seen")
"""Of the current run."""


class Side:
    """Runs flows under one set of accelerators."""

    def __init__(self, engine: LangflowEngine, under: Set, provider: StubProvider, folder: Path) -> None:
        self._engine = engine
        self._under = under
        self._provider = provider
        self._folder = folder

    async def run_case(self, case: Case) -> dict[str, Any]:
        """A flow, stage by stage."""
        verdict = None if case.checked else await self._verdict(case)
        self._provider.requests.clear()
        before = outcome.files(self._folder)
        history = Sessions()
        done: dict[str, Any] = {"verdict": verdict}
        with contextlib.nullcontext() if case.checked else unchecked():
            flow = await self._engine.load(self._source(case))
            for stage in self._under.stages:
                runs = case.runs(stage)
                told = await asyncio.gather(*(self._run(flow, case, run, history) for run in runs))
                done.update((str(run.index), one) for run, one in zip(runs, told, strict=True))
        left = dict(outcome.files(self._folder).items() - before.items())
        for path in left:
            Path(path).unlink()  # what the next set writes is to be seen too
        return {**done, "files": outcome.settled(left, self._folder)}

    async def _verdict(self, case: Case) -> list[str] | None:
        """What our checks say of a flow before it runs."""
        try:
            flow = await self._engine.load(self._source(case))
            await self._run(flow, case, Run(0), Sessions())
        except HeadraceError as error:
            return [type(error).__name__, error.message]
        return None

    def _source(self, case: Case) -> FlowSource:
        path = Path(case.path)
        return FlowSource(case.route, "0" * 64, case.export(), path, path.with_suffix(".files"))

    def _request(self, case: Case, run: Run) -> RunRequest:
        payload: dict[str, Any] = {"input_value": run.text}
        root = None
        if case.reads is not None:
            root = self._folder / f"report-{run.index}"
            root.mkdir(exist_ok=True)
            (root / "report.txt").write_text(run.report)
            payload["files"] = [str(root / "report.txt")]
        return RunRequest(
            event_id=f"event-of-{run.mark}",
            payload=payload,
            session_id=run.session,
            files_root=root,
            variables={"OPENAI_COMPATIBLE_BASE_URL": self._provider.url, "OPENAI_COMPATIBLE_API_KEY": run.key},
            without=frozenset(self._under.without),
        )

    async def _run(self, flow: Any, case: Case, run: Run, history: Sessions) -> Any:
        """One run; what it did to its chat is noted even where it failed, which a worker would drop."""
        seen = Seen()
        SEEN.set(seen)
        failure: BaseException | None = None
        try:
            async with asyncio.timeout(DEADLINE):
                await self._engine.run(flow, self._request(case, run), history, lambda *_: None)
        except Fault as fault:
            if fault.__cause__ is None:  # one of our checks: nothing has run
                raise
            failure = fault.__cause__
        history.commit(seen.state.chat.commits())
        told = seen.told or outcome.of_graph(seen.graph, failure)
        messages = history.messages.get(run.session or "", [])
        told["messages"] = outcome.of_messages(messages)
        told["exact"]["messages"] = messages
        told["requests"] = outcome.of_requests(self._provider.requests, run.key)
        return outcome.settled(told, self._folder)


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Without our checks before a run, so that the engine's own error comes."""
    from runtime.engine import family, preflight

    requirements = family.requirements

    def met(*args: Any) -> Any:
        return replace(requirements(*args), missing=())

    with mock.patch.object(family, "requirements", met), mock.patch.object(preflight, "check"):
        yield


def watch() -> None:
    """See the graph and the state of every run, and what the graph holds at its end."""
    from runtime.engine import runner

    bind, leave = runner.bind_graph, runner.leave

    def bind_graph(graph: Any, state: Any, *, within: str | None = None) -> None:
        if within is None:
            SEEN.get().graph, SEEN.get().state = graph, state
        bind(graph, state, within=within)

    def take_leave(graph: Any, *others: Any) -> None:
        seen = SEEN.get()
        seen.told, seen.graph = outcome.of_graph(graph, None), None  # what somebody has is not taken apart
        leave(graph, *others)

    runner.bind_graph, runner.leave = bind_graph, take_leave


def shipping(sources: frozenset[str], made: list[classes.ClassCache]) -> AbstractContextManager[Any]:
    """Have these sources taken for some that Langflow ships, and note the cache of classes."""
    shipped = classes.shipped_sources

    class Noted(classes.ClassCache):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    return mock.patch.multiple(classes, shipped_sources=lambda index: shipped(index) | sources, ClassCache=Noted)


async def run_set(plan: Plan, under: Set, folder: Path, provider: StubProvider) -> dict[str, Any]:
    """The flows of a set, in an engine of its own."""
    cases = [plan.case(route) for route in under.routes]
    codes = {case.route: own_source(case) for case in cases} if under.shipped else {}
    made: list[classes.ClassCache] = []
    with shipping(frozenset(codes.values()), made) if under.shipped else contextlib.nullcontext():
        engine = LangflowEngine(accelerators=under.switches)
        await engine.prepare(concurrency=len(RUNS))
    side = Side(engine, under, provider, folder)
    done = {case.route: await side.run_case(case) for case in cases}
    await engine.close()
    for route, code in codes.items():
        done[route]["kept"] = any(key[0] == code for key in made[0]._classes)
    return done


def own_source(case: Case) -> str:
    """The source of a probe's component."""
    nodes = case.export()["data"]["nodes"]
    code = next(node for node in nodes if node["id"] == "Probe-it")["data"]["node"]["template"]["code"]["value"]
    return str(code)


async def main(plan: Plan, folder: Path) -> None:
    """All sets of the plan, one after the other."""
    provider = StubProvider()
    provider.default = answers.answer
    provider.start()
    first = LangflowEngine()  # for its imports
    await first.prepare(concurrency=len(RUNS))
    await first.close()
    watch()
    with contextlib.suppress(ImportError):
        importlib.import_module("langflow.api.v2.mcp")  # imports itself: another error the first time
    with prototypes_at_once(), Offline().guard(), (folder / "outcomes.json").open("w") as outcomes:
        for name, under in plan.sets.items():
            told = await run_set(plan, under, folder, provider)
            print(json.dumps({"set": name, "routes": told}), file=outcomes, flush=True)
    provider.stop()


if __name__ == "__main__":
    asyncio.run(main(Plan.read(Path(sys.argv[1])), Path(sys.argv[2])))
