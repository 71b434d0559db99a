"""Plans, the two processes that carry one out, and the comparison of what they wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared_models.route import Accelerators
from tests.equality import outcome, probes
from tests.equality.plan import AGAIN, RUNS, Case, Plan, Run, Set
from tests.integration.starters.expected import FAILS, NEEDS_A_FILE
from tests.support.starters import export_of, starters, with_models

ROOT = Path(__file__).parents[2]
NAMES = tuple(Accelerators.model_fields)
NONE = dict.fromkeys(NAMES, False)
ALL = dict.fromkeys(NAMES, True)
PAIR = (0, 4)
"""A run within a session, and one without."""
FEW = ("basic-prompting", "simple-agent", "knowledge-retrieval")
"""A prompt for a model, an agent with tools, and a failure: together they use all that is accelerated."""
SIDES = ("stock", "ours")
DEADLINE = 3600.0
"""Seconds for a side."""


def cases(folder: Path) -> Iterator[Case]:
    """Every starter with a model chosen, and every probe, as files in a folder."""
    for route in starters():
        path = _written(folder, route, with_models(export_of(route), name="stub-model"))
        fails = route in FAILS and route not in NEEDS_A_FILE
        stopped = fails and FAILS[route][0] != "RunFailed"
        yield Case(route, path, reads=NEEDS_A_FILE.get(route), checked=not stopped, fails=fails)
    for name, code in {**probes.LEAKING, **probes.HARMLESS}.items():
        yield Case(name, _written(folder, name, probes.flow(name, code)))


def _written(folder: Path, name: str, export: Mapping[str, Any]) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(export), encoding="utf-8")
    return str(path)


def alone(name: str) -> dict[str, bool]:
    """The switches of an engine that has one accelerator."""
    return {**NONE, name: True}


def part(folder: Path) -> Plan:
    """What the suite runs: all flows with all accelerators, eight side by side; few flows with each alone."""
    flows = tuple(cases(folder))
    routes = tuple(case.route for case in flows)
    sets = {
        "all": Set({}, routes, (RUNS,)),
        "shipped": Set(ALL, tuple(probes.LEAKING | probes.HARMLESS), (RUNS,), shipped=True),
        "none": Set(NONE, FEW, tuple((index,) for index in PAIR)),
        **{name: Set(alone(name), FEW, (PAIR,)) for name in NAMES},
    }
    return Plan(flows, PAIR, sets)


def whole(folder: Path) -> Plan:
    """Everything: all flows; with all accelerators, all runs and a second turn in each session; with each alone, in an
    engine that has no other and in runs that are without the others, one run within a session beside one without."""
    flows = tuple(cases(folder))
    routes = tuple(case.route for case in flows)
    own = tuple(probes.LEAKING | probes.HARMLESS)
    by_route = {
        f"{name} by its route": Set({}, routes, (PAIR,), without=tuple(other for other in NAMES if other != name))
        for name in NAMES
    }
    sets = {
        "none": Set(NONE, routes, tuple((index,) for index in (*PAIR, *AGAIN[:1]))),
        **{name: Set(alone(name), routes, (PAIR,)) for name in NAMES},
        "shipped": Set(ALL, own, (RUNS, AGAIN), shipped=True),
        "all": Set({}, routes, (RUNS, AGAIN)),
        **by_route,
    }
    return Plan(flows, (*RUNS, *AGAIN), sets)


@dataclass(frozen=True)
class Told:
    """What both sides told of a plan."""

    plan: Plan
    stock: Mapping[str, Mapping[str, Any]]
    ours: Mapping[str, Mapping[str, Mapping[str, Any]]]

    def unlike_stock(self, name: str, route: str) -> list[str]:
        """Where a set's runs of a flow are not what the stock engine made of them, one by one."""
        want, got = self.stock[route], self.ours[name][route]
        runs = [Run(int(key)) for key in got if key.isdigit()]
        assert runs, "nothing was run"
        found = []
        for run in runs:
            one = want.get(str(run.index)) or _as(run, want[str(run.like)])
            found += outcome.differences(_common(one), _common(got[str(run.index)]), f"{name} {route} {run.mark}")
        return [*found, *outcome.differences(want["files"], got["files"], f"{name} {route} files")]

    def unlike_none(self, name: str, route: str) -> list[str]:
        """Where they are not, to the last detail and in our checks, what our engine makes of them unaccelerated."""
        want, got = self.ours["none"][route], self.ours[name][route]
        keys = [key for key in got if key in want]
        assert any(key.isdigit() for key in keys), "nothing was run"
        return [d for key in keys for d in outcome.differences(want[key], got[key], f"{name} {route} {key}")]


def _as(run: Run, like: Any) -> Any:
    """What became of one run, in the words of another of its kind."""
    return json.loads(json.dumps(like).replace(Run(run.like).mark, run.mark))


def _common(one: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in one.items() if key != "exact"}


def carry_out(plan: Plan, folder: Path) -> Told:
    """Run both sides at once, each in a process of its own. Raises AssertionError with the log of one that fails."""
    plan.write(folder / "plan.json")
    sides = {name: _start(name, folder) for name in SIDES}
    try:
        for name, side in sides.items():
            assert side.wait(DEADLINE) == 0, (folder / name / "side.log").read_text()[-6000:]
    finally:
        for side in sides.values():
            side.kill()
            side.wait()
    return read(folder)


def read(folder: Path) -> Told:
    """What both sides have told so far."""
    stock, ours = (
        [json.loads(line) for line in (folder / name / "outcomes.json").read_text().splitlines()] for name in SIDES
    )
    return Told(Plan.read(folder / "plan.json"), stock[0]["routes"], {told["set"]: told["routes"] for told in ours})


def _start(name: str, folder: Path) -> subprocess.Popen[bytes]:
    own = folder / name
    for part in ("config", "tmp", "work"):
        (own / part).mkdir(parents=True)
    environ = {
        **{key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ},
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "0",  # which of two failures of one layer is told hangs on the order of a set
        "TMPDIR": str(own / "tmp"),
        "LANGFLOW_CONFIG_DIR": str(own / "config"),
        "LANGFLOW_DATABASE_URL": f"sqlite:///{own}/langflow.db",
        "LANGFLOW_SSRF_ALLOWED_HOSTS": "127.0.0.2",  # else a key from the environment is not sent there
        "LANGFLOW_VERTEX_BUILDS_STORAGE_ENABLED": "false",
        "LANGFLOW_TRANSACTIONS_STORAGE_ENABLED": "false",
        "DO_NOT_TRACK": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [sys.executable, "-m", f"tests.equality.{name}", str(folder / "plan.json"), str(own)]
    with (own / "side.log").open("wb") as log:
        return subprocess.Popen(command, env=environ, cwd=own / "work", stdout=log, stderr=log)


def compared(told: Told) -> Iterable[tuple[str, str, int, list[str]]]:
    """Every set and flow with the number of its runs and what is not equal."""
    for name, routes in told.ours.items():
        for route in routes:
            runs = sum(key.isdigit() for key in told.ours[name][route])
            found = told.unlike_stock(name, route)
            if route in told.ours["none"] and name != "shipped":
                found += told.unlike_none(name, route)
            yield name, route, runs, found
