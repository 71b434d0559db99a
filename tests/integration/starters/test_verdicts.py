"""Each starter registers: unready as it is shipped, with what a user can do about it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from runtime.engine.report import FlowReport, Verdict
from runtime.engine.upgrade import ComponentState
from tests.integration.starters.expected import COMPLETE, FAILS, NEEDS_A_FILE, UNREADY
from tests.support.starters import starters

pytestmark = pytest.mark.timeout(300)  # the first test waits for the engine's import and for 27 loads


def test_the_tables_name_every_starter() -> None:
    assert len(starters()) == 27
    assert set(UNREADY) == set(starters()) == {*COMPLETE, *FAILS}


@pytest.mark.parametrize("route", UNREADY)
def test_verdict(route: str, reports: Mapping[str, FlowReport]) -> None:
    report = reports[route]
    assert report.error is None
    assert report.verdict is Verdict.UNREADY
    assert tuple(f"{need.kind}:{need.component_id}" for need in report.needs) == UNREADY[route]
    for need in report.needs:
        assert need.component_id and need.component_id in need.message
        assert need.component_name and need.component_name in need.message
    assert report.saved_by
    assert {component.state for component in report.components} == {ComponentState.OK}
    assert len(report.outputs) in (1, 2)


def test_a_loop_is_cyclic_and_no_warning(reports: Mapping[str, FlowReport]) -> None:
    assert [route for route, report in reports.items() if report.cyclic] == ["research-translation-loop"]
    assert reports["research-translation-loop"].warnings == ()


def test_warnings_name_what_an_event_must_bring_and_what_never_runs(reports: Mapping[str, FlowReport]) -> None:
    for route, component in NEEDS_A_FILE.items():
        assert any(component in warning and "file" in warning for warning in reports[route].warnings)
    assert any("File-hsri" in warning and "never run" in warning for warning in reports["hybrid-search-rag"].warnings)
    assert any("MemoryBase-xePih" in warning for warning in reports["memory-chatbot"].warnings)


def test_no_starter_reaches_for_the_network_when_it_loads(reports: Mapping[str, FlowReport]) -> None:
    assert [r.route for r in reports.values() if any("network" in warning for warning in r.warnings)] == []
