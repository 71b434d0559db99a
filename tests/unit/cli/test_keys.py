"""`headrace keys`."""

from __future__ import annotations

import json

from tests.support.command import in_process
from tests.support.servers import RedisServer


def test_a_key_is_made_shown_once_listed_and_revoked(valkey_server: RedisServer) -> None:
    valkey_server.execute("FLUSHALL")
    redis = ("--redis-url", valkey_server.url)
    assert in_process("keys", "list", *redis).err == "there are no API keys\n"
    words = ("keys", "create", "shop", "--tenant", "blue", "--scope", "send", "--expires", "90d", *redis)
    made = in_process(*words)
    assert made.code == 0, made
    token = made.out.strip()
    assert token.startswith("hr_")
    assert token not in made.err
    [listed] = json.loads(in_process("keys", "list", "--json", *redis).out)
    assert token.split("_")[1] == listed["id"]
    assert (listed["name"], listed["tenant"], listed["scopes"]) == ("shop", "blue", ["send"])
    assert listed["expires_at"] - listed["created_at"] == 90 * 86_400_000
    shown = in_process("keys", "list", *redis).out
    assert listed["id"] in shown
    assert token.split("_", 2)[2] not in shown
    assert in_process("keys", "revoke", listed["id"], *redis).code == 0
    assert in_process("keys", "revoke", listed["id"], *redis).code == 1


def test_what_is_wrong_about_a_key_is_told(valkey_server: RedisServer) -> None:
    redis = ("--redis-url", valkey_server.url)
    for words in (("--scope", "write"), ("--expires", "90"), ("--tenant", " "), ("a\nb",)):
        assert in_process("keys", "create", *words, *redis).code == 2
