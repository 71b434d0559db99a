"""How the engine starts: from a clean machine, from a running loop, twice, without a network, within 1 GB."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.engine.environment import check_environment
from runtime.engine.langflow import LangflowEngine
from runtime.engine.state import RunState
from runtime.errors import EngineError
from tests.integration.engine.conftest import Runner
from tests.support import flows
from tests.support.provider import StubProvider

ROOT = Path(__file__).parents[3]
DEADLINE = 110.0

pytestmark = pytest.mark.timeout(180)


async def start(tmp_path: Path, given: dict[str, Any], *, deadline: float = DEADLINE, **environ: str) -> dict[str, Any]:
    """Start the engine in a process of its own, with an empty HOME that cannot be written."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o500)
    clean = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), **environ}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.engine.startup"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=tmp_path,
        env=clean,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(json.dumps(given).encode()), deadline)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        home.chmod(0o700)
    assert process.returncode == 0, err.decode()[-3000:]
    assert list(home.iterdir()) == []
    told: dict[str, Any] = json.loads(out)
    told["stderr"] = err.decode()
    return told


async def test_a1_a7_a8_a23_a_clean_machine(provider: StubProvider, tmp_path: Path) -> None:
    given = {"flows": {"hello": flows.hello().export(), "agent": flows.agent().export()}, "url": provider.url}
    told = await start(tmp_path, given)
    for one in told["rounds"]:
        assert one["said"] == {"hello": "hi", "agent": "echo: hi"}
        assert one["late"] == {"hello": [], "agent": []}, "a first run imports what its flow's load should have"
    assert told["reached"] == [], "the engine reaches for the network when it starts"
    assert told["peak"] < 1024**3
    assert told["rounds"][0]["prepare"] < 60
    assert told["rounds"][1]["prepare"] < 1, "a second start in the same process is free"
    assert "sqlite" not in told["stderr"].lower()
    assert not [left for left in tmp_path.glob("headrace-engine-*")], "the engine's private state is left behind"


def test_a19_a_component_path_that_is_missing_stops_the_start(tmp_path: Path) -> None:
    check_environment({"LANGFLOW_COMPONENTS_PATH": str(tmp_path)})
    check_environment({})
    with pytest.raises(EngineError, match="LANGFLOW_COMPONENTS_PATH names /no/such/place"):
        check_environment({"LANGFLOW_COMPONENTS_PATH": f"{tmp_path},/no/such/place"})


@pytest.mark.timeout(400)
async def test_a19_a20_without_custom_components_the_first_event_gets_the_same_verdict_as_later_ones(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "components" / "mine"
    folder.mkdir(parents=True)
    source = flows.component("def work(self) -> Message:\n    return Message(text='mine: ' + self.text)", name="MyOwn")
    (folder / "my_own.py").write_text(source)
    (folder / "__init__.py").write_text("")
    own = flows.through("def work(self) -> Message:\n    return Message(text='mine: ' + self.text)", name="MyOwn")
    custom = flows.through("def work(self) -> Message:\n    return Message(text=self.text)")
    exports = {"first": flows.hello(), "own": own, "custom": custom, "again": flows.hello()}
    given = {"flows": {name: flow.export() for name, flow in exports.items()}, "url": "", "rounds": 1}
    restricted = {
        "LANGFLOW_ALLOW_CUSTOM_COMPONENTS": "false",
        "LANGFLOW_COMPONENTS_PATH": str(tmp_path / "components"),
    }
    told = await start(tmp_path, given, deadline=300, **restricted)
    said = told["rounds"][0]["said"]
    assert (said["first"], said["again"], said["own"]) == ("hi", "hi", "mine: hi")
    assert said["custom"].startswith("FlowUnready")
    assert "Custom-it" in said["custom"]
    assert "LANGFLOW_ALLOW_CUSTOM_COMPONENTS" in said["custom"]


async def test_an_engine_that_was_not_prepared_says_so() -> None:
    with pytest.raises(EngineError, match="not prepared"):
        await LangflowEngine().load(flows.source(flows.hello()))


async def test_the_state_of_runs_does_not_pile_up(run: Runner) -> None:
    flow = flows.hello()
    for n in range(5):
        await run(flow, str(n), session_id=f"s{n}")
    gc.collect()
    before = len(gc.get_objects())
    for n in range(40):
        await run(flow, str(n), session_id=f"s{n % 5}")
    run.history.messages.clear()
    run.told.events.clear()
    gc.collect()
    kept = [o for o in gc.get_objects() if type(o) is RunState]
    assert len(kept) <= 1, "what a run leaves for the context it ran in is bounded"
    assert len(gc.get_objects()) - before < 4000
