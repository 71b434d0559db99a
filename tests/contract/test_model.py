"""Random schedules of workers, producers and faults against real servers; and proof that the model has teeth."""

from __future__ import annotations

import hashlib

import pytest

from runtime.broker import scripts
from runtime.broker.client import Broker
from runtime.broker.scripts import Script
from tests.support.model import Broken, explore

SCHEDULES = 80


async def test_invariants_hold_in_random_schedules(real_broker: Broker) -> None:
    await explore(real_broker, range(SCHEDULES))


MUTATIONS = {
    "C1 no delayed state": ("retry", "'state', 'delayed'", "'state', 'absent'", ["resend"]),
    "C2 no token in the fence": ("complete", "h[2] == token and", "true and", ["zombie"]),
    "C4 begin without a lease": ("begin", "if not alive(me) then return {-1} end", "", ["zombie"]),
    "C8 redelivery takes over": (
        "begin",
        "if alive(holder) and not (",
        "if not same and alive(holder) and not (",
        ["destroy"],
    ),
    "C15 after a dead letter always fresh": ("begin", "sent <= ", "sent < 0 * ", ["resend"]),
    "C20 own write told as lost": ("complete", "redis.call('HEXISTS', gate, 'o:' .. token) == 1", "false", ["lost"]),
    "release keeps its charge": ("release", "tonumber(h[2] or 1) - 1", "tonumber(h[2] or 1)", ["lost"]),
    "a failure ends the suspicion": (
        "retry",
        "redis.call('PEXPIRE', gate, delay + 2592000000)",
        "redis.call('HDEL', gate, 'suspect') redis.call('PEXPIRE', gate, delay + 2592000000)",
        ["crash", "pod"],
    ),
    "a pause keeps the decision before it": ("suspend", "redis.call('HDEL', gate, 'decision')", "", ["ask"]),
    "obituary ignored": ("begin", "blame ~= '*'", "false", ["crash", "drain", "lost"]),
}
"""The rule, what it is broken to, and the faults that show it."""


@pytest.mark.parametrize("name", MUTATIONS)
async def test_a_broken_rule_is_noticed(valkey_url: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from runtime.settings import RedisSettings

    file, rule, broken, faults = MUTATIONS[name]
    source = scripts.script(file).source
    assert rule.encode() in source, "the script has changed; so must this mutation"
    mutated = source.replace(rule.encode(), broken.encode())
    real = scripts.script
    wrong = Script(file, mutated, hashlib.sha1(mutated, usedforsecurity=False).hexdigest())
    monkeypatch.setattr(scripts, "script", lambda asked: wrong if asked == file else real(asked))
    broker = Broker.connect(valkey_url, RedisSettings())
    try:
        with pytest.raises(Broken):
            await explore(broker, range(1000), faults)
    finally:
        await broker.close()
