"""Accelerated runs are what the stock engine makes of them: a part of the matrix; ``python -m tests.equality`` is all.

Outputs, components built, errors, chat messages, requests to the model and files, each with the marks of its own run.
"""

from __future__ import annotations

import pytest

from tests.equality import probes
from tests.equality.matrix import FEW, NAMES, Told, carry_out, part
from tests.equality.plan import RUNS, Run
from tests.support.starters import starters

pytestmark = pytest.mark.timeout(400)  # the first test waits for two imports of the engine, and for all runs


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What the stock engine and ours made of the same flows."""
    folder = tmp_path_factory.mktemp("equality")
    (folder / "flows").mkdir()
    return carry_out(part(folder / "flows"), folder)


@pytest.mark.parametrize("route", starters())
def test_eight_side_by_side_are_what_the_engine_makes_one_by_one(route: str, told: Told) -> None:
    assert told.unlike_stock("all", route) == []


@pytest.mark.parametrize("route", FEW)
@pytest.mark.parametrize("name", NAMES)
def test_each_alone_is_what_the_engine_makes(name: str, route: str, told: Told) -> None:
    assert told.unlike_stock(name, route) == []
    assert told.unlike_none(name, route) == []


@pytest.mark.parametrize("route", FEW)
def test_all_together_are_what_none_are_to_the_last_detail(route: str, told: Told) -> None:
    assert told.unlike_none("all", route) == []


@pytest.mark.parametrize("probe", [*probes.LEAKING, *probes.HARMLESS])
def test_no_class_carries_anything_over_to_runs_beside_it(probe: str, told: Told) -> None:
    """Neither as a user's component, whose class is never used again, nor as one that Langflow ships."""
    assert told.unlike_stock("all", probe) == []
    assert told.unlike_stock("shipped", probe) == []
    assert told.ours["shipped"][probe]["kept"] is (probe in probes.HARMLESS)


@pytest.mark.parametrize("route", ["simple-agent", "text-sentiment-analysis"])
def test_runs_tell_themselves_apart(route: str, told: Told) -> None:
    """Else a mix-up would not show: a run's mark is in all that is compared, and no other's is."""
    for run in map(Run, RUNS):
        ran = told.ours["all"][route][str(run.index)]
        others = [other.mark for other in map(Run, RUNS) if other != run]
        for what in ("outputs", "requests", *(["messages"] if run.session else [])):
            text = str(ran[what])
            assert run.mark in text
            assert not [mark for mark in others if mark in text]
