"""Three flows: Headrace's whole worker beside the stock engine called directly, ``lfx serve`` and a plain worker.

hello is two nodes, basic the starter "Basic Prompting", agent an agent with two tools of which it uses one. All of them
run in the same minute on the same stub model, which is a process of its own that nobody is charged for. Headrace runs
with one process; Valkey's CPU is told apart. The peers run one flow at a time, so what they do with many in flight is
measured where it matters and by a few of their events only.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Row, Sample, quiet, told
from tests.benchmarks.peers import Served, Stock, lfx_serve, plain, stock
from tests.benchmarks.stack import Stack, stack, valkey
from tests.benchmarks.stub import Stub, stub
from tests.support import flows as made
from tests.support.starters import export_of

EXAMPLES = Path(__file__).parents[2] / "flows"
FLOWS = ("hello", "basic", "agent")
SLOTS = "200"


@dataclass(frozen=True)
class Cell:
    """What is measured at once. ``peers`` names who is measured beside Headrace; ``seconds`` limits each of them."""

    flow: str
    latency: float
    in_flight: int
    peers: str = ""
    targets: dict[str, str] = field(default_factory=dict)
    seconds: float = 6.0

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.flow}, model {self.latency:g} s, {self.in_flight} in flight"


FULL = (
    Cell("hello", 0, 1, "stock serve plain", {"stock": "<= 0.3334"}),
    Cell("hello", 0, 40, "stock serve"),
    Cell("hello", 0, 200, "serve"),
    Cell("basic", 0, 1, "stock known serve plain", {"stock": "<= 0.2"}),
    Cell("basic", 0, 40, "stock known serve", {"known": "<= 0.1667", "serve": ">= 6"}),
    Cell("basic", 0, 200, "known"),
    Cell("basic", 1, 1, "serve plain"),
    Cell("basic", 1, 40, "known", seconds=9),
    # A second at its start, in which all wait for the model, and its end are part of it: it is long beside them.
    Cell("basic", 1, 200, "known serve", {"serve": ">= 60"}, seconds=30),
    Cell("agent", 0, 1, "stock known serve plain", {"stock": "<= 0.2"}),
    Cell("agent", 0, 40, "stock known serve", {"known": "<= 0.1667"}),
    Cell("agent", 0, 200, ""),
    Cell("agent", 1, 1, "plain", seconds=7),
    Cell("agent", 1, 40, "", seconds=9),
    Cell("agent", 1, 200, "", seconds=12),
)
QUICK = (
    Cell("hello", 0, 1, "stock serve", {"stock": "<= 0.3334"}, 2),
    Cell("basic", 0, 1, "stock", {"stock": "<= 0.2"}, 2),
    Cell("basic", 0, 40, "known serve", {"known": "<= 0.1667", "serve": ">= 6"}, 3),
    Cell("basic", 1, 200, "serve", {"serve": ">= 60"}, 15),
    Cell("agent", 0, 1, "stock", {"stock": "<= 0.2"}, 2),
    Cell("agent", 0, 40, "known", {"known": "<= 0.1667"}, 3),
)

_RATES = {"hello": 60.0, "basic": 9.0, "agent": 4.0}
"""Runs per second that the stock engine is good for, to choose how many it is given."""


async def measure(*, quick: bool = False) -> list[Row]:
    """Every cell, with the ratios to its peers."""
    cells = QUICK if quick else FULL
    rows: list[Row] = []
    with ExitStack() as scope:
        home = Path(scope.enter_context(tempfile.TemporaryDirectory()))
        model = scope.enter_context(stub())
        folder, bare = write_flows(home / "flows", model), home / "bare"
        write_exports(bare)
        us = scope.enter_context(stack(folder, "--concurrency", SLOTS))
        engine = scope.enter_context(stock(bare, _new(home / "stock"), model.environment))
        server = scope.enter_context(lfx_serve(bare, _new(home / "serve"), model.environment))
        for cell in cells:
            async for row in _cell(cell, us, engine, server, model):
                rows.append(told(row))
        async for row in _plain(cells, tuple(rows), bare, home, model):
            rows.append(told(row))
    return rows


async def _cell(cell: Cell, us: Stack, engine: Stock, server: Served, model: Stub) -> AsyncIterator[Row]:
    model.take(cell.latency)
    load = quiet()
    mine = await us.measure(cell.flow, in_flight=cell.in_flight, seconds=cell.seconds)
    yield Row(f"{cell.name}: Headrace", mine.values("Headrace"), load=load)
    for kind in ("stock", "known"):
        if kind in cell.peers:
            count = max(cell.in_flight, int(cell.seconds * _RATES[cell.flow] / 2))
            theirs = engine.measure(cell.flow, in_flight=cell.in_flight, events=count, known_host=kind == "known")
            for row in _against_engine(cell, kind, mine, theirs):
                yield Row(row.figure, row.values, row.ratio, row.target, load)
    if "serve" in cell.peers:
        theirs = await server.measure(
            cell.flow, in_flight=cell.in_flight, seconds=cell.seconds, hurry=lambda: model.take(0)
        )
        target = cell.targets.get("serve", "")
        ratio = mine.rate / theirs.rate
        yield Row(f"{cell.name}: events/s, to lfx serve", theirs.values("lfx serve"), ratio, target, load)


def _against_engine(cell: Cell, kind: str, mine: Sample, theirs: Sample) -> Iterator[Row]:
    who = "stock" if kind == "stock" else "stock, host known"
    values, target = theirs.values(who), cell.targets.get(kind, "")
    yield Row(f"{cell.name}: CPU, to {who}", values, mine.cpu_ms / theirs.cpu_ms, target)
    if kind == "stock":
        yield Row(f"{cell.name}: wall, to {who}", {}, theirs.rate / mine.rate)


async def _plain(
    cells: tuple[Cell, ...], rows: tuple[Row, ...], bare: Path, home: Path, model: Stub
) -> AsyncIterator[Row]:
    """The plain worker, one flow after the other: it is another process for each."""
    for flow in FLOWS:
        asked = [cell for cell in cells if cell.flow == flow and "plain" in cell.peers]
        if not asked:
            continue
        with valkey() as url, plain(url, bare / f"{flow}.json", _new(home / f"plain-{flow}"), model.environment) as it:
            for cell in asked:
                model.take(cell.latency)
                load = quiet()
                # It takes one event after the other: how many wait makes no difference to it, only to us.
                theirs = await it.measure(seconds=cell.seconds)
                for depth in (1, 40, 200):
                    name = Cell(flow, cell.latency, depth).name
                    found = next((row for row in rows if row.figure == f"{name}: Headrace"), None)
                    if found is not None:
                        ratio = float(found.values["Headrace events/s"]) / theirs.rate
                        yield Row(f"{name}: events/s, to a plain worker", theirs.values("plain"), ratio, load=load)


def write_exports(folder: Path, names: tuple[str, ...] = FLOWS) -> None:
    """The flows as files, their models set to the stub's."""
    folder.mkdir(parents=True, exist_ok=True)
    exports = {
        "hello": lambda: json.loads((EXAMPLES / "hello.json").read_text(encoding="utf-8")),
        "basic": lambda: _with_model(export_of("basic-prompting")),
        "agent": lambda: _with_model(made.agent("CalculatorComponent", "CurrentDate", name="agent").export()),
    }
    for name in names:
        (folder / f"{name}.json").write_text(json.dumps(exports[name]()), encoding="utf-8")


def _with_model(export: dict[str, Any]) -> dict[str, Any]:
    """The flow with the provider "OpenAI" chosen in every model field, as the UI writes it."""
    for node in export["data"]["nodes"]:
        for found in node["data"].get("node", {}).get("template", {}).values():
            if isinstance(found, dict) and found.get("type") == "model":
                found["value"] = [{"name": "gpt-4o-mini", "provider": "OpenAI", "icon": "OpenAI", "metadata": {}}]
    return export


def write_flows(folder: Path, model: Stub, names: tuple[str, ...] = FLOWS) -> Path:
    """The flows and their route specs, which name the stub model; the folder."""
    write_exports(folder, names)
    for name in names:
        spec = {"variables": model.environment} if name != "hello" else {}
        (folder / f"{name}.yaml").write_text(json.dumps(spec), encoding="utf-8")
    return folder


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
