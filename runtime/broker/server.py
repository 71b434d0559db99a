"""What the server itself says: its version, its settings that matter to us, its room."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.broker.client import Broker
from runtime.broker.cluster import Cluster
from runtime.errors import AccessDenied, BrokerError, BrokerUnavailable, ServerUnfit

OLDEST = (7, 0)
"""The first version of Redis that can be used. Every Valkey can."""

SETTINGS = ("maxmemory-policy", "maxmemory", "appendonly", "appendfsync", "save", "timeout", "cluster-enabled")

_PROBE = "#!lua flags=allow-oom\nreturn 1"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server's own account of itself. ``settings`` is None where it does not let us read them (managed services)."""

    product: str
    version: tuple[int, ...]
    role: str
    used_memory: int
    settings: Mapping[str, str] | None = field(default=None)
    scripts: bool = True
    """Whether it runs Lua scripts for us."""
    topology: str = "one server"
    """What answers under the address."""
    clustered: bool = False
    """It is one of a cluster, but was not addressed so."""


async def inspect(broker: Broker) -> ServerFacts:
    """Ask the server. Raises BrokerUnavailable."""
    info = _lines((await broker.connection.command("INFO")).decode("utf-8", "replace"))
    valkey = info.get("valkey_version")
    topology = await broker.connection.topology()
    return ServerFacts(
        product="Valkey" if valkey else "Redis",
        version=_version(valkey or info.get("redis_version", "")),
        role=info.get("role", ""),
        used_memory=int(info.get("used_memory", 0)),
        settings=await _settings(broker),
        scripts=await _runs_scripts(broker),
        topology=topology,
        clustered=info.get("cluster_enabled") == "1" and not isinstance(broker.connection, Cluster),
    )


async def admit(broker: Broker) -> None:
    """Whether a worker can live on this server, as far as it shows before the first lease.

    Raises ServerUnfit, with the reason in one line, where waiting does not help: no access, no scripts, an old version,
    one server of a cluster that was not addressed so. Raises BrokerUnavailable where it may help.
    """
    try:
        await broker.connection.command("PING")
        text = await broker.connection.command("INFO", "server") + await broker.connection.command("INFO", "cluster")
        info = _lines(text.decode("utf-8", "replace"))
    except AccessDenied as error:
        raise ServerUnfit(error.message) from error
    except BrokerUnavailable:
        raise
    except BrokerError as error:
        if "DB index" in error.message:
            raise ServerUnfit(error.message) from error
        info = {}  # it need not let us look
    version = _version(info.get("redis_version", ""))
    if "valkey_version" not in info and version and version < OLDEST:
        raise ServerUnfit(f"this is Redis {info['redis_version']}; Headrace needs Redis 7.0 or later, or Valkey")
    if info.get("cluster_enabled") == "1" and not isinstance(broker.connection, Cluster):
        raise ServerUnfit("this server is one of a cluster; write redis+cluster://host:port")
    try:
        await broker.connection.command("EVAL", _PROBE, 0)
    except BrokerUnavailable:
        raise
    except BrokerError as error:
        raise ServerUnfit(f"a worker cannot run its scripts here: {error.message}") from error


async def key_type(broker: Broker, key: str) -> str:
    """What a key holds: ``stream``, another type's name, or ``none``."""
    reply = await broker.connection.command("TYPE", key)
    return reply.decode() if isinstance(reply, bytes) else str(reply)


async def _settings(broker: Broker) -> Mapping[str, str] | None:
    found: dict[str, str] = {}
    try:
        for name in SETTINGS:
            reply = [x.decode("utf-8", "replace") for x in await broker.connection.command("CONFIG", "GET", name)]
            found.update(zip(reply[::2], reply[1::2], strict=True))
    except BrokerUnavailable:
        raise
    except BrokerError:
        return None
    return found


async def _runs_scripts(broker: Broker) -> bool:
    try:
        return bool(await broker.connection.command("EVAL", _PROBE, 0) == 1)
    except BrokerUnavailable:
        raise
    except BrokerError:
        return False


def _version(text: str) -> tuple[int, ...]:
    """Its numbers, two at least, without what a vendor or a candidate adds; empty where there are none."""
    numbers = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", text)
    return tuple(int(number or 0) for number in numbers.groups()) if numbers else ()


def _lines(text: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line and not line.startswith("#"))
