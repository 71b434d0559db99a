"""``headrace flows``: the exports in a folder, what is wrong with them, and what workers make of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.groups import retire
from runtime.cli.options import AsJson, Flows, RedisUrl, group, wait_for
from runtime.cli.output import FAILED, UNREACHABLE, note, say, say_json, table

if TYPE_CHECKING:
    from runtime.broker.fleet import RouteEntry
    from runtime.broker.streams import BlockInfo
    from runtime.engine.report import FlowReport
    from runtime.registry.snapshot import Problem, Route, Snapshot
    from runtime.settings import Settings

app = group("The exported flows.")
app.command("retire")(retire)


@app.command("list")
def list_(*, flows: Flows = None, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """List the folder's routes: what runs, what is not ready and why, which file is broken.

    Where no Redis is given, or none answers, it tells what the folder alone says.
    """
    from runtime.cli.connection import known_url, read_settings
    from runtime.cli.directory import scan_folder
    from runtime.errors import BrokerUnavailable

    settings = read_settings()
    folder = flows or settings.flows
    running, trouble = None, None
    try:
        if known_url(redis_url, settings):
            running = wait_for(_running(redis_url, settings))
    except BrokerUnavailable as error:
        trouble = error
    rows = list(join(scan_folder(folder), running))
    if as_json:
        say_json(rows)
    else:
        _print(rows, folder)
    if trouble is not None:
        note(f"headrace: only the folder is shown: {trouble.message}")
        raise typer.Exit(UNREACHABLE)
    if running is None:
        note("no Redis is given, so only the folder is shown")


@dataclass(frozen=True, slots=True)
class Running:
    """What workers say of the routes, by name: where they read, why they are blocked, why no worker runs them.

    A reason of None: one does.
    """

    entries: Mapping[str, RouteEntry]
    blocks: Mapping[str, BlockInfo | None]
    reasons: Mapping[str, str | None]


async def _running(redis_url: str | None, settings: Settings) -> Running:
    from runtime.cli.connection import connected
    from runtime.cli.directory import keys_of
    from runtime.cli.results import unready

    async with connected(redis_url, settings) as broker:
        entries = await broker.fleet.routes()
        workers = await broker.fleet.workers()
        blocks = await broker.streams.blocked([keys_of(entry) for entry in entries.values()])
    reasons = {name: unready(entry, workers) for name, entry in entries.items()}
    return Running(entries, dict(zip(entries, blocks, strict=True)), reasons)


def join(snapshot: Snapshot, running: Running | None) -> Iterator[dict[str, Any]]:
    """A row for each route that the folder or a worker knows, and for each problem of the folder.

    ``running`` is None where there is no Redis to ask: whether a route is ready is then not known.
    """
    problems: dict[str, list[Problem]] = {}
    nameless: list[Problem] = []
    for problem in snapshot.problems:
        name = _route_of(problem)
        (problems.setdefault(name, []) if name else nameless).append(problem)
    found = {**snapshot.disabled, **snapshot.routes}
    for name in sorted({*found, *problems, *(running.entries if running else ())}):
        yield _row(name, found.get(name), problems.get(name, []), running)
    for problem in nameless:
        yield {**_row("", None, [problem], running), "route": None}


def _route_of(problem: Problem) -> str | None:
    from shared_models.names import slug

    return problem.route or (slug(problem.path.stem) if problem.path.suffix in (".json", ".yaml", ".yml") else None)


def _row(name: str, route: Route | None, problems: Sequence[Problem], running: Running | None) -> dict[str, Any]:
    entry = running.entries.get(name) if running else None
    block = running.blocks.get(name) if running else None
    reason = running.reasons.get(name, "no worker has registered it") if running else None
    ready = (entry is not None and reason is None) if running else None
    path = route.path if route else problems[0].path if problems else None
    return {
        "route": name,
        "path": str(path) if path else None,
        "stream": route.stream if route else entry.stream if entry else None,
        "group": route.group if route else entry.group if entry else None,
        "enabled": route.spec.enabled if route else None,
        "version": route.version if route else None,
        "running_version": entry.version if entry and ready else None,
        "ready": ready,
        "blocked": block is not None,
        "reason": block.reason if block else reason or (entry.reason if entry else None) or None,
        "error": "; ".join(problem.message for problem in problems) or None,
    }


def _print(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    table(
        ["route", "state", "file", "runs", "stream", "path"],
        (
            [r["route"] or "-", _state(r), _short(r["version"]), _short(r["running_version"]), r["stream"], r["path"]]
            for r in rows
        ),
        empty=f"no flows in {folder}",
    )
    for r in rows:
        if r["error"]:
            kept = f" (version {_short(r['running_version'])} keeps running)" if r["running_version"] else ""
            say(f"{r['path']}: {r['error']}{kept}")
        elif r["reason"] and r["enabled"] is not False:
            say(f"{r['route']}: {r['reason']}")


def _state(row: Mapping[str, Any]) -> str:
    if row["error"]:
        return "broken file"
    if row["enabled"] is False:
        return "disabled"
    if row["blocked"]:
        return "blocked"
    return "not asked" if row["ready"] is None else "ready" if row["ready"] else "unready"


def _short(version: str | None) -> str:
    return (version or "")[:7]


@app.command("check")
def check(
    *,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR|FILE]...", help="Default: the flows folder.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check flows without Redis: files, specs, components, packages, versions. Exits 1 on a problem, for use in CI."""
    from runtime.cli.connection import read_settings

    problems: list[Problem] = []
    reports: list[FlowReport] = []
    for path in paths or [read_settings().flows]:
        snapshot, wanted = _scan(path)
        problems += [p for p in snapshot.problems if wanted is None or p.path.resolve() == wanted]
        for report in _reports(snapshot, wanted):
            reports.append(report)
            if not as_json:
                _print_report(report)
    if as_json:
        say_json([*reports, *({"path": str(p.path), "route": p.route, **_broken(p)} for p in problems)])
    else:
        for problem in problems:
            say(f"BROKEN  {problem.path}: {problem.message}")
        if not (reports or problems):
            note("no flows to check")
    if problems or any(report.verdict.value != "ready" for report in reports):
        raise typer.Exit(FAILED)


@app.command("requirements")
def requirements(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Default: the flows folder.", show_default=False)
    ] = None,
) -> None:
    """Print what the flows need, pinned to what is installed here: the engine, and no package more than they ask for.

    For an image that holds no more (k8s/image). Exits with 1 where something is not installed, so has no version.
    """
    from runtime.cli.connection import read_settings
    from runtime.cli.directory import scan_folder
    from runtime.worker.route_book import sources

    path = folder or read_settings().flows
    if not path.is_dir():
        raise typer.BadParameter(f"there is no folder {path}")
    snapshot = scan_folder(path)
    _need_engine()
    from runtime.engine.catalog import installed
    from runtime.engine.packages import packages_of

    packages = packages_of(sources(snapshot.routes).values(), installed())
    for package in packages:
        say(package.line + (f"  # {', '.join(package.routes[:5])}" if package.routes else ""))
    for problem in snapshot.problems:
        note(f"{problem.path}: {problem.message}")
    unknown = [package.name for package in packages if package.version is None]
    if unknown:
        note(f"headrace: not installed here, so without a version: {', '.join(unknown)}")
    if unknown or snapshot.problems:
        raise typer.Exit(FAILED)


def _need_engine() -> None:
    from runtime.errors import EngineError

    if _missing_engine():
        raise EngineError(
            "flows are checked with Langflow's engine, which is not installed: pip install 'headrace[worker]'"
        )


def _scan(path: Path) -> tuple[Snapshot, Path | None]:
    """The snapshot of the folder, and the one file that is asked about."""
    from runtime.cli.directory import scan_folder

    if path.is_dir():
        return scan_folder(path), None
    if not path.is_file():
        raise typer.BadParameter(f"there is no file or folder {path}")
    return scan_folder(path.parent), path.resolve()


def _reports(snapshot: Snapshot, wanted: Path | None) -> Iterator[FlowReport]:
    from runtime.worker.route_book import sources

    siblings = sources(snapshot.routes)
    asked = [s for s in siblings.values() if wanted is None or wanted in _files(s.path)]
    if not asked:
        return
    _need_engine()
    from runtime.engine.check import check_flows

    if sys.stderr.isatty():
        note(f"loading Langflow and {len(asked)} flow{'s' if len(asked) != 1 else ''} …")
    yield from check_flows(asked, siblings)


def _files(path: Path) -> set[Path]:
    """The export, and the spec beside it: asked about either, the flow is checked."""
    whole = path.resolve()
    return {whole, whole.with_suffix(".yaml"), whole.with_suffix(".yml")}


def _missing_engine() -> bool:
    from importlib.util import find_spec

    return find_spec("lfx") is None


def _broken(problem: Problem) -> dict[str, Any]:
    return {"verdict": "invalid", "error": problem.message, "code": problem.code, "needs": [], "components": []}


def _print_report(report: FlowReport) -> None:
    say(f"{report.verdict.value.upper():<7} {report.route} ({report.path})")
    if report.error:
        say(f"        {report.error}")
    for need in report.needs:
        say(f"        needs: {need.message}")
    for warning in report.warnings:
        say(f"        note: {warning}")
    good = sum(component.state.value == "ok" for component in report.components)
    say(f"        {good} of {len(report.components)} components are as in the installed version")
    for component in report.components:
        if component.state.value != "ok":
            state = component.state.value.replace("_", " ")
            say(f"        {state}: {component.name} ({component.id}) {component.note}".rstrip())
