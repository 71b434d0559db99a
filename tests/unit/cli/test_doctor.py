"""What a server's settings mean for us."""

from __future__ import annotations

import pytest

from runtime.broker.server import ServerFacts
from runtime.cli.doctor import judge

GOOD = {
    "maxmemory-policy": "noeviction",
    "maxmemory": "0",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "timeout": "0",
}


def statuses(**more: object) -> dict[str, str]:
    facts = {"product": "Redis", "version": (7, 0, 15), "role": "master", "used_memory": 10 * 2**20, "settings": GOOD}
    return {check.name: check.status for check in judge(ServerFacts(**{**facts, **more}))}


def test_a_good_server() -> None:
    assert set(statuses().values()) == {"ok"}


@pytest.mark.parametrize(
    ("facts", "name", "status"),
    [
        ({"version": (6, 2, 14)}, "redis version", "fail"),
        ({"role": "slave"}, "redis role", "fail"),
        ({"scripts": False}, "redis scripts", "fail"),
        ({"settings": None}, "redis settings", "warn"),
        ({"settings": {**GOOD, "maxmemory-policy": "allkeys-lru"}}, "redis eviction", "fail"),
        ({"settings": {**GOOD, "appendonly": "no", "save": "3600 1"}}, "redis persistence", "warn"),
        ({"settings": {**GOOD, "maxmemory": str(11 * 2**20)}}, "redis memory", "fail"),
        ({"settings": {**GOOD, "maxmemory": str(12 * 2**20)}}, "redis memory", "warn"),
        ({"settings": {**GOOD, "timeout": "10"}}, "redis timeout", "warn"),
        ({"settings": {**GOOD, "timeout": "300"}}, "redis timeout", "ok"),
    ],
)
def test_what_is_wrong_is_told(facts: dict[str, object], name: str, status: str) -> None:
    assert statuses(**facts)[name] == status


def test_valkey_has_versions_of_its_own() -> None:
    assert "redis version" not in statuses(product="Valkey", version=(9, 1, 2))
