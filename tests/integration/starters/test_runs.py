"""With a model chosen, the starters run, and as they run when the engine is called directly."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import Fault, FlowUnready
from shared_models.result import Output
from tests.integration.starters.conftest import MODES, Runner, asked
from tests.integration.starters.expected import COMPLETE, FAILS, NEEDS_A_FILE, REACHES
from tests.support.command import in_process
from tests.support.provider import StubProvider
from tests.support.starters import starters

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("route", COMPLETE)
async def test_completes(route: str, mode: str, runner: Runner, our_provider: StubProvider) -> None:
    ran = await runner.run(route, mode)
    assert ran.fault is None
    assert ran.output is not None and ran.output.result.text
    assert asked(our_provider, route, mode)


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
    route: str, runner: Runner, tmp_path: Path, our_provider: StubProvider
) -> None:
    before = len(our_provider.chats)
    files = tmp_path / f"{route}.files"
    files.mkdir()
    (files / "report.txt").write_text("Net income rose. What a quarter!")
    output = await runner.once(route, {"files": ["report.txt"]}, folder=tmp_path)
    assert output.result.text
    assert any("What a quarter!" in text for call in our_provider.chats[before:] for text in call.texts("user"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("route", COMPLETE)
async def test_runs_as_the_engine_alone_does(
    route: str,
    mode: str,
    runner: Runner,
    stock: Mapping[str, Mapping[str, Any]],
    our_provider: StubProvider,
    stock_provider: StubProvider,
) -> None:
    """The same outputs, the same components built, and the model asked the same."""
    ran, alone = await runner.run(route, mode), stock[mode][route]
    assert alone["error"] is None
    assert ran.output is not None
    assert compared(ran.output.result.outputs) == alone["outputs"]
    assert list(ran.built) == alone["built"]
    assert asked(our_provider, route, mode) == asked(stock_provider, route, mode)


@pytest.mark.parametrize("route", starters())
async def test_calls_nobody_but_the_model(route: str, runner: Runner) -> None:
    ran = await runner.run(route)
    assert ran.reached_at_load == frozenset()
    assert ran.reached_at_run == REACHES.get(route, frozenset())


def compared(outputs: list[Output]) -> dict[str, dict[str, Any]]:
    """Our outputs in the words of the stock side: all starters end in chat outputs, whose value is a message."""
    return {output.id: {"message": {"text": output.text}} for output in outputs}


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
