"""With a model chosen, the starters run. That they run as the engine alone runs them, ``tests.equality`` shows."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from runtime.errors import Fault, FlowUnready
from tests.integration.starters.conftest import MODES, Runner, model_name
from tests.integration.starters.expected import COMPLETE, FAILS, NEEDS_A_FILE, REACHES
from tests.support.command import in_process
from tests.support.provider import StubProvider
from tests.support.starters import starters

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("route", COMPLETE)
async def test_completes(route: str, mode: str, runner: Runner, provider: StubProvider) -> None:
    ran = await runner.run(route, mode)
    assert ran.fault is None
    assert ran.output is not None and ran.output.result.text
    assert any(call.body["model"] == model_name(route, mode) for call in provider.chats)


@pytest.mark.parametrize("route", FAILS)
async def test_fails_naming_the_component(route: str, runner: Runner) -> None:
    kind, component = FAILS[route]
    ran = await runner.run(route)
    assert ran.output is None
    assert type(ran.fault).__name__ == kind
    if isinstance(ran.fault, FlowUnready):
        assert any(component in need for need in ran.fault.needs)
    else:
        assert isinstance(ran.fault, Fault)
        assert ran.fault.info.component_id == component
        assert component in ran.fault.message


@pytest.mark.parametrize("route", NEEDS_A_FILE)
async def test_completes_with_a_file_from_the_event(
    route: str, runner: Runner, tmp_path: Path, provider: StubProvider
) -> None:
    before = len(provider.chats)
    files = tmp_path / f"{route}.files"
    files.mkdir()
    (files / "report.txt").write_text("Net income rose. What a quarter!")
    output = await runner.once(route, {"files": ["report.txt"]}, folder=tmp_path)
    assert output.result.text
    assert any("What a quarter!" in text for call in provider.chats[before:] for text in call.texts("user"))


@pytest.mark.parametrize("route", starters())
async def test_calls_nobody_but_the_model(route: str, runner: Runner) -> None:
    ran = await runner.run(route)
    assert ran.reached_at_load == frozenset()
    assert ran.reached_at_run == REACHES.get(route, frozenset())


async def test_an_image_for_all_of_them_has_what_their_components_import(tmp_path: Path) -> None:
    for route, path in starters().items():
        (tmp_path / f"{route}.json").write_bytes(path.read_bytes())
    done = in_process("flows", "requirements", str(tmp_path))
    assert (done.code, done.err) == (0, "")
    pinned = dict(line.partition(" ")[0].split("==") for line in done.out.splitlines())
    # Those without which three of them do not even load, and the engine.
    assert {"lfx", "astrapy", "trustcall", "langchain-community"} <= pinned.keys()
    assert len(pinned) < 15
    assert all(version(name) == number for name, number in pinned.items())
