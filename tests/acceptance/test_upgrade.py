"""Deploys: versions side by side, one after the other, forwards and back; nothing is lost, no attempt is spent."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from runtime.broker.dead_letters import DeadLetters
from runtime.broker.keys import RouteKeys
from shared_models.codec import decode, encode
from shared_models.envelope import EventEnvelope
from shared_models.result import Decision, RunStatus
from tests.support.harness import ECHO_FLOW, Client, client, running, write_flow
from tests.support.ledger import read_ledger, starts, worker_process
from tests.support.real import until
from tests.support.release import DEAD, KEYS, LATER, RESULTS, flows_in, restore

RELEASES = sorted((Path(__file__).parent / "releases").glob("*.json"))
LOADED = RouteKeys("flows:echo", "headrace")


async def test_a_rolling_update_under_load_loses_nothing_and_spends_no_attempt(server_url, tmp_path):
    """Three times, as a Deployment does: a pod of the new version reads, then an old one is told to end."""
    folders = []
    for version in range(4):
        folders.append(tmp_path / f"flows-{version}")
        write_flow(
            folders[-1], "echo", {**ECHO_FLOW, "description": f"version {version}"}, {"retry": {"initial": "10ms"}}
        )
    ledger = tmp_path / "ledger"
    over = asyncio.Event()
    events: list[str] = []

    async def produce(c: Client) -> None:
        while not over.is_set():
            # Most end at once; some run on for longer than the pod that began them is given.
            long = len(events) % 25 == 0
            events.append(await c.send("flows:echo", {"input_value": "x", "sleep": 3.0 if long else 0.05}))
            await asyncio.sleep(0.005)

    async with client(server_url) as c:
        producer = asyncio.create_task(produce(c))
        how: dict[str, Any] = {"processes": 2, "concurrency": 4, "grace": 1.0}
        with ExitStack() as pods:
            old = pods.enter_context(worker_process(server_url, folders[0], ledger, **how))
            for folder in folders[1:]:
                new, before = pods.enter_context(worker_process(server_url, folder, ledger, **how)), len(starts(ledger))
                await until(lambda: len(new.children()) == 2 and len(starts(ledger)) > before + 60)  # noqa: B023  awaited here and now
                for _ in range(2):  # as an impatient platform does
                    old.kill(signal.SIGTERM)
                assert old.ended_with() == 0
                old = new
            over.set()
            await producer
            found = await c.entries(f"{LOADED.stream}:results", len(events), timeout=60)
            records = [await c.run(LOADED, event) for event in events]
            assert old.end() == 0
        assert Counter(result["parent_id"] for result in found) == Counter(events), "each published once"
        assert {record.status for record in records} == {RunStatus.COMPLETED}
        assert {record.attempts for record in records} == {1}, "no attempt was spent"
        assert len({record.version for record in records}) == 4, "each version ran some"
        assert await c.redis.xlen(LOADED.stream) == await c.redis.xlen(f"{LOADED.stream}:dead_letter") == 0
        finished = Counter(line["event"] for line in read_ledger(ledger) if line["what"] == "end")
        assert finished == Counter(events), "each came to its end once"


@pytest.mark.parametrize("later", [False, True], ids=["as-it-was", "with-fields-of-a-later-version"])
@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.stem)
async def test_what_a_release_left_in_redis_goes_on(server_url, tmp_path, path, later):
    restore(server_url, json.loads(path.read_text(encoding="utf-8")), later=later)
    async with client(server_url) as c, running(server_url, flows_in(tmp_path)):
        # What was read by nobody yet, and what was put off: with the attempt that it has had.
        first = await c.run(KEYS, "unread-1")
        assert (first.status, first.attempts, first.root_id, first.tenant_id) == ("completed", 1, "root-1", "blue")
        assert first.result is not None and first.result.text == "unread-1"
        assert (await c.entries("replies:shop", 1))[0]["parent_id"] == "unread-1"
        put_off = await c.run(KEYS, "later-1")
        assert (put_off.status, put_off.attempts) == (RunStatus.DEAD_LETTERED, 2)
        # A run that asks a person takes the decision.
        asks = await c.broker.runs.get(KEYS, "person-1")
        assert asks is not None and asks.pause is not None and asks.pause.allowed == ["yes", "no"]
        await c.broker.pauses.resume(KEYS, "person-1", Decision(action_id="yes"))
        resumed = await c.run(KEYS, "person-1")
        assert resumed.result is not None and resumed.result.text == "person-1 yes"
        # What was done is done: the same event again is answered, not run.
        before = await c.redis.xlen(RESULTS)
        await c.send(KEYS.stream, {"input_value": "done-1"}, event_id="done-1")
        await until(lambda: _empty(c))
        assert await c.redis.xlen(RESULTS) == before
        done = await c.broker.runs.get(KEYS, "done-1")
        assert done is not None and done.result is not None and done.result.text == "done-1"
        # A dead letter is told, and goes back with its fields.
        letters = {letter.event_id: letter for letter in await c.broker.dead_letters.list(DEAD)}
        assert letters.keys() == {"dead-1", "later-1"}
        assert letters["dead-1"].error.code == "echo_failed"
        await _again(c.broker.dead_letters, letters["dead-1"].id)
        await until(lambda: _died_again(c))
        # Who runs what is told too.
        (route,) = (await c.broker.fleet.routes()).values()
        assert (route.route, route.stream, route.group) == ("echo", KEYS.stream, KEYS.group)


async def _empty(c: Client) -> bool:
    return await c.redis.xlen(KEYS.stream) == 0


async def _again(letters: DeadLetters, letter: str) -> None:
    await letters.requeue(KEYS, stream=DEAD, dead_letter_id=letter)


async def _died_again(c: Client) -> bool:
    return [letter.event_id for letter in await c.broker.dead_letters.list(DEAD)] == ["later-1", "dead-1"]


def _unread(path: Path) -> list[tuple[str, dict[str, str]]]:
    state = json.loads(path.read_text(encoding="utf-8"))
    return [(entry, fields) for entry, fields in state[KEYS.stream]["value"]]


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.stem)
def test_an_older_version_reads_what_this_one_writes(path):
    """Going back: this version writes the fields that the release wrote, unless something new is asked for."""
    (fields,) = (fields for _, fields in _unread(path) if fields.get("event_id") == "unread-1")
    pairs = [(name.encode(), value.encode()) for name, value in fields.items()]
    envelope = decode(pairs, stream=KEYS.stream, entry_id="1-1", max_payload=1 << 20, now_ms=1_800_000_000_000)
    assert dict(encode(envelope)) == fields
    plain = EventEnvelope(event_id="e", root_id="e", idempotency_key="e", payload={"input_value": "x"})
    assert {name for name, _ in encode(plain)} <= fields.keys()


def test_a_decision_of_a_later_version_is_read():
    """It is made by a gateway and read by a worker, which may be of another version."""
    assert Decision.model_validate_json('{"action_id": "yes", "reason": "later"}') == Decision(action_id="yes")


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.stem)
def test_fields_that_a_version_does_not_know_are_the_producers_own(path):
    for entry, fields in _unread(path):
        pairs = [(name.encode(), value.encode()) for name, value in fields.items()]
        how = {"stream": KEYS.stream, "entry_id": entry, "max_payload": 1 << 20, "now_ms": 1_800_000_000_000}
        known = decode(pairs, **how)
        if "schema" in fields:
            more = decode([*pairs, (LATER.encode(), b"1")], **how)
            assert more == known.model_copy(update={"attributes": {**known.attributes, LATER: "1"}})
