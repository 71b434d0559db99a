"""``headrace doctor``: is everything here as it must be, and if not, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from runtime.cli.groups import left_behind, sentence
from runtime.cli.options import AsJson, Flows, RedisUrl, wait_for
from runtime.cli.output import FAILED, UNREACHABLE, say, say_json

if TYPE_CHECKING:
    from runtime.broker.server import ServerFacts
    from runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. ``status`` is ok, warn (works, but see) or fail; ``hint`` says what to do."""

    name: str
    status: str
    detail: str
    hint: str = ""


def doctor(flows: Flows = None, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """Check the settings, Redis, the engine and the flows. Exits 1 if something fails, 3 if Redis is unreachable."""
    checks = list(_check_all(flows, redis_url))
    if as_json:
        say_json([asdict(check) for check in checks])
    else:
        for check in checks:
            say(f"{check.status.upper():<5} {check.name}: {check.detail}")
            if check.hint:
                say(f"      -> {check.hint}")
    failed = {check.name for check in checks if check.status == "fail"}
    if failed:
        raise typer.Exit(UNREACHABLE if "redis" in failed else FAILED)


def _check_all(flows: Path | None, redis_url: str | None) -> Iterator[Check]:
    from runtime.cli.connection import read_settings
    from shared_models.errors import HeadraceError

    try:
        settings = read_settings()
    except HeadraceError as error:
        yield Check("settings", "fail", error.message, "mend or unset the variable")
        return
    yield Check("settings", "ok", "every HEADRACE_ variable is known and valid")
    yield from _redis(redis_url, settings, flows or settings.flows)
    yield from _engine(settings)
    yield from _flows(flows or settings.flows)


def _redis(redis_url: str | None, settings: Settings, flows: Path) -> Iterator[Check]:
    from runtime.errors import BrokerUnavailable

    try:
        facts, groups = wait_for(_facts(redis_url, settings, flows))
    except BrokerUnavailable as error:
        yield Check("redis", "fail", error.message, "is it running, and is the address right?")
        return
    yield from judge(facts)
    for group in groups:
        yield Check("groups", "warn", sentence(group))


async def _facts(redis_url: str | None, settings: Settings, flows: Path) -> tuple[ServerFacts, list[dict[str, Any]]]:
    from runtime.broker.server import inspect
    from runtime.cli.connection import connected
    from runtime.cli.directory import Directory
    from runtime.errors import BrokerError

    async with connected(redis_url, settings) as broker:
        facts = await inspect(broker)
        try:
            directory = await Directory.load(broker, flows)
            return facts, await left_behind(broker, list(directory.routes.values()), flows)
        except BrokerError:  # one of a cluster, or a replica: the facts say so
            return facts, []


def judge(facts: ServerFacts) -> Iterator[Check]:
    """What the server's account of itself means for us."""
    from runtime.broker.server import OLDEST

    version = ".".join(map(str, facts.version))
    yield Check("redis", "ok", f"{facts.product} {version} answers")
    if facts.product == "Redis" and facts.version[:2] < OLDEST:
        yield Check("redis version", "fail", version, "Redis 7.0 or later, or Valkey, is needed")
    yield Check("redis topology", "fail" if facts.clustered else "ok", *_topology(facts))
    if facts.role == "slave":
        yield Check("redis role", "fail", "a replica cannot be written to", "use the address of the primary")
    if not facts.scripts:
        yield Check("redis scripts", "fail", "the server refuses Lua scripts", "allow EVAL and EVALSHA to this user")
    if facts.settings is None:
        yield Check(
            "redis settings",
            "warn",
            "the server does not show them",
            "make sure of maxmemory-policy noeviction and AOF",
        )
        return
    for judged in (_eviction, _persistence, _memory, _timeout):
        yield judged(facts, facts.settings)


def _topology(facts: ServerFacts) -> tuple[str, ...]:
    if facts.clustered:
        return "this server is one of a cluster", "write the address as redis+cluster://host:port,host:port"
    return (facts.topology,)


def _eviction(facts: ServerFacts, settings: Any) -> Check:
    policy = settings.get("maxmemory-policy", "")
    if policy == "noeviction":
        return Check("redis eviction", "ok", policy)
    return Check(
        "redis eviction",
        "fail",
        f"maxmemory-policy is {policy}: Redis may throw away run states and waiting events",
        "CONFIG SET maxmemory-policy noeviction",
    )


def _persistence(facts: ServerFacts, settings: Any) -> Check:
    if settings.get("appendonly") == "yes":
        return Check("redis persistence", "ok", f"append-only file, fsync {settings.get('appendfsync')}")
    detail = "snapshots only" if settings.get("save") else "none"
    return Check("redis persistence", "warn", f"{detail}: a restart loses accepted events", "CONFIG SET appendonly yes")


def _memory(facts: ServerFacts, settings: Any) -> Check:
    limit, used = int(settings.get("maxmemory", 0)), facts.used_memory
    if not limit:
        return Check("redis memory", "ok", f"{used // 2**20} MiB used, no limit set")
    share = used / limit
    detail = f"{used // 2**20} of {limit // 2**20} MiB used ({share:.0%})"
    if share > 0.9:
        return Check("redis memory", "fail", detail, "new events are refused when it is full: raise maxmemory")
    return Check("redis memory", "warn" if share > 0.75 else "ok", detail)


def _timeout(facts: ServerFacts, settings: Any) -> Check:
    seconds = int(settings.get("timeout", 0))
    if 0 < seconds < 60:
        return Check(
            "redis timeout", "warn", f"idle clients are closed after {seconds} s", "CONFIG SET timeout 0 (or above 60)"
        )
    return Check("redis timeout", "ok", "idle clients stay" if not seconds else f"{seconds} s")


def _engine(settings: Settings) -> Iterator[Check]:
    from importlib.metadata import PackageNotFoundError, version

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    lfx, langflow = installed("lfx"), installed("langflow")
    if lfx is None:
        yield Check(
            "engine", "warn", "Langflow's engine is not installed: no worker here", "pip install 'headrace[langflow]'"
        )
    elif langflow is None:
        yield Check("engine", "ok", f"lfx {lfx}, without the full catalogue: flows that need more say so")
    else:
        yield Check("engine", "ok", f"lfx {lfx}, langflow {langflow}")
    if lfx is not None:
        yield from _accelerators(settings)


def _accelerators(settings: Settings) -> Iterator[Check]:
    """Flows run without them too, only dearer."""
    from runtime.engine.accelerators import statuses

    found = statuses(dict(settings.engine.accelerators))
    on = [status.name for status in found if status.state == "on"]
    yield Check("accelerators", "ok", f"{', '.join(on) or 'none'} on")
    for status in found:
        if status.state == "off":
            yield Check(f"accelerator {status.name}", "ok", "switched off by the settings")
        elif status.state == "aside":
            yield Check(
                f"accelerator {status.name}",
                "warn",
                f"not used: {status.reason}",
                "flows run without it, at a higher cost; a newer headrace may know this version",
            )


def _flows(folder: Path) -> Iterator[Check]:
    from runtime.cli.directory import scan_folder

    if not folder.is_dir():
        yield Check("flows", "warn", f"there is no folder {folder}", "name one with --flows or HEADRACE_FLOWS")
        return
    snapshot = scan_folder(folder)
    yield Check("flows", "ok", f"{len(snapshot.routes)} routes in {folder}")
    for problem in snapshot.problems:
        yield Check("flows", "fail", f"{problem.path}: {problem.message}", "headrace flows check tells more")
