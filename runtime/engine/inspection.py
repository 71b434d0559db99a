"""A flow looked at from all sides: what it needs, what is odd about it, how its components have aged, does it load.

Runs in the checker's own process (``runtime.engine.check_child``), since loading a flow executes code of the flow.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from runtime.engine import family, upgrade
from runtime.engine.base import Engine, FlowSource
from runtime.engine.catalog import Catalog
from runtime.engine.export import Export, Node, read_export
from runtime.engine.needs import Need, NeedKind, Stage
from runtime.engine.reach import FILLED_BY_EVENTS, is_cyclic, running
from runtime.engine.report import ComponentReport, FlowReport, NeedReport, Verdict
from runtime.engine.requirements import Requirements
from runtime.engine.upgrade import ComponentState
from runtime.errors import FlowUnready
from shared_models.errors import HeadraceError

OUTPUTS = frozenset({"ChatOutput", "TextOutput", "DataOutput"})


async def inspect(
    source: FlowSource,
    *,
    engine: Engine,
    catalog: Catalog,
    siblings: Mapping[str, FlowSource],
    environ: Collection[str],
) -> FlowReport:
    """The report of one flow. ``environ`` holds the names of the variables that the environment sets."""
    began = time.monotonic()
    error, told = await _load(engine, source)
    seconds = time.monotonic() - began
    if error is not None:
        return _invalid(source, error, seconds, catalog)
    effective = family.prepared(source)
    export = read_export(effective.export, route=source.route)
    wanted = family.requirements(effective, siblings)
    needs = _needs(wanted, told, known=source.variables | set(environ))
    components = _components(source, catalog)
    return FlowReport(
        **_identity(source, export),
        verdict=Verdict.UNREADY if needs else Verdict.READY,
        needs=needs,
        warnings=(*warnings(export, wanted), *_aged(components, upgraded=source.upgrade)),
        components=components,
        cyclic=is_cyclic(export),
        seconds=round(seconds, 3),
    )


async def _load(engine: Engine, source: FlowSource) -> tuple[str | None, tuple[str, ...]]:
    """Why the flow is invalid, if it is; what the engine says it needs."""
    try:
        await engine.load(source)
    except FlowUnready as unready:
        return None, unready.needs or (unready.message,)
    except HeadraceError as invalid:
        return invalid.message, ()
    except Exception as surprise:  # noqa: BLE001  a report is due, whatever the flow's source raises
        return f"loading it failed: {type(surprise).__name__}: {surprise}", ()
    return None, ()


def _invalid(source: FlowSource, error: str, seconds: float, catalog: Catalog) -> FlowReport:
    try:
        export = read_export(source.export, route=source.route)
        components = _components(source, catalog)
    except Exception:  # noqa: BLE001  whatever made it invalid may be in the way of reading it too
        return invalid_report(source, error, seconds=seconds)
    return FlowReport(
        **_identity(source, export),
        verdict=Verdict.INVALID,
        error=error,
        components=components,
        seconds=round(seconds, 3),
    )


def invalid_report(source: FlowSource, error: str, *, seconds: float = 0.0) -> FlowReport:
    """The report of a flow of which nothing can be said but why."""
    name = source.export.get("name")
    return FlowReport(
        route=source.route,
        path=source.path,
        version=source.version,
        name=name if isinstance(name, str) else "",
        verdict=Verdict.INVALID,
        error=error,
        seconds=round(seconds, 3),
    )


def warnings(export: Export, wanted: Requirements) -> Iterator[str]:
    """What does not stop the flow and is worth knowing."""
    yield from (condition.need.message for condition in wanted.wants_files)
    yield from wanted.remarks
    idle = [node for node in export.nodes if node.id not in running(export)]
    if idle:
        yield f"these components never run, since nothing connects them to the input: {_names(idle)}"
    if is_cyclic(export, loops=False):
        yield "the flow has a cycle: only the route's timeout ends one that never leaves it"
    if paused := export.of_type("HumanInput"):
        yield f"an event that reaches {_names(paused)} waits for a decision: headrace runs resume"
    inputs = export.of_type(*FILLED_BY_EVENTS)
    if len(inputs) > 1:
        yield f"the flow has several inputs, which all get the event's text: {_names(inputs)}; address one by 'inputs'"
    if not inputs:
        yield "the flow has no input component: events only set it off"
    if not export.of_type(*OUTPUTS):
        yield "the flow has no output component: its last components' values are its result"


def _needs(wanted: Requirements, told: tuple[str, ...], *, known: Collection[str]) -> tuple[NeedReport, ...]:
    """What is missing, each once: by our analysis, and by the engine where it says something else."""
    found = [*wanted.missing, *wanted.unmet(variables=known)]
    said = {need.message for need in found}
    more = [Need(NeedKind.COMPONENT, Stage.LOAD, message) for message in told if message not in said]
    return tuple(NeedReport.of(need) for need in dict.fromkeys([*found, *more]))


def _identity(source: FlowSource, export: Export) -> dict[str, Any]:
    return {
        "route": source.route,
        "path": source.path,
        "version": source.version,
        "name": export.name,
        "saved_by": upgrade.saved_by(source.export),
        "inputs": tuple(node.id for node in export.of_type(*FILLED_BY_EVENTS)),
        "outputs": tuple(node.id for node in export.of_type(*OUTPUTS)),
    }


def _components(source: FlowSource, catalog: Catalog) -> tuple[ComponentReport, ...]:
    return tuple(ComponentReport.of(verdict) for verdict in upgrade.component_verdicts(source.export, catalog))


def _aged(verdicts: Collection[ComponentReport], *, upgraded: bool) -> Iterator[str]:
    breaking = [v for v in verdicts if v.state is ComponentState.OUTDATED_BREAKING]
    safe = [v for v in verdicts if v.state is ComponentState.OUTDATED_SAFE]
    for verdict in breaking:
        by = f", saved by {verdict.saved_by}," if verdict.saved_by else ""
        yield f"component {verdict.name!r} ({verdict.id}){by} runs its saved source: {verdict.note or 'it has changed'}"
    if safe and not upgraded:
        yield f"{len(safe)} components are older than the installed ones; 'upgrade: safe' runs the installed source"


def _names(nodes: Collection[Node]) -> str:
    return ", ".join(f"{node.name!r} ({node.id})" for node in nodes)
