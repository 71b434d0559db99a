"""All that a release leaves in Redis, as JSON: recorded with that release, put back for later ones to go on from.

``python -m tests.support.release tests/acceptance/releases/VERSION.json`` records the version that is installed. What
was recorded is not recorded anew: it is what deployments of that release hold.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

from runtime.broker.keys import RouteKeys
from shared_models.result import RunStatus
from tests.support.harness import Client, client, running, write_flow
from tests.support.real import until
from tests.support.servers import RedisServer, valkey_binary

KEYS = RouteKeys("flows:echo", "headrace")
DEAD = "flows:echo:dead_letter"
RESULTS = "flows:echo:results"
SPEC = {"retry": {"max_attempts": 2, "initial": "1h", "max": "1h"}, "session": "'s'"}

ANY_BYTE = "latin-1"
"""Some values are no text: each byte is a character of the JSON."""

LATER = "of_a_later_version"
"""A field that no version knows."""


def flows_in(folder: Path) -> Path:
    """The flows folder whose events were recorded."""
    write_flow(folder / "flows", "echo", spec=SPEC)
    return folder / "flows"


async def make(c: Client, url: str, folder: Path) -> None:
    """Events in every state that outlives a deploy: done, dead, put off, asking a person, and not yet read."""

    async def send(event: str, **payload: Any) -> None:
        await c.send(KEYS.stream, {"input_value": event, **payload}, event_id=event)

    async def stands(event: str, status: RunStatus, attempts: int) -> bool:
        record = await c.broker.runs.get(KEYS, event)
        return record is not None and (record.status, record.attempts) == (status, attempts)

    async with running(url, flows_in(folder)):
        await send("done-1")
        await send("dead-1", fail="event")
        await send("later-1", fail="moment")
        await send("person-1", ask=[{"options": ["yes", "no"], "prompt": "may I?"}])
        await until(lambda: stands("done-1", RunStatus.COMPLETED, 1))
        await until(lambda: stands("dead-1", RunStatus.DEAD_LETTERED, 1))
        await until(lambda: stands("later-1", RunStatus.DELAYED, 1))
        await until(lambda: stands("person-1", RunStatus.WAITING, 0))
    await c.send(
        KEYS.stream,
        {"input_value": "unread-1", "context": {"order": 7}},
        event_id="unread-1",
        root_id="root-1",
        parent_id="parent-1",
        step_index=2,
        event_type="order.created",
        source="shop",
        tenant_id="blue",
        idempotency_key="key-1",
        session_id="anna",
        timestamp=1_700_000_000_000,
        attempt=2,
        expires_at=4_000_000_000_000,
        reply_to="replies:shop",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        tracestate="vendor=1",
    )
    await c.redis.xadd(KEYS.stream, {"input_value": "unread-2"})


def record(url: str) -> dict[str, Any]:
    """Every key, by what it holds."""
    with redis.Redis.from_url(url, decode_responses=True, encoding=ANY_BYTE) as r:
        return {key: _read(r, key) for key in sorted(r.keys())}


def _read(r: Any, key: str) -> dict[str, Any]:
    kind = r.type(key)
    if kind == "stream":
        groups = {
            g["name"]: {
                "last": g["last-delivered-id"],
                "pending": [(p["message_id"], p["consumer"]) for p in r.xpending_range(key, g["name"], "-", "+", 1000)],
            }
            for g in r.xinfo_groups(key)
        }
        return {"kind": kind, "value": r.xrange(key), "groups": groups}
    how = {
        "hash": r.hgetall,
        "string": r.get,
        "list": lambda k: r.lrange(k, 0, -1),
        "zset": lambda k: r.zrange(k, 0, -1, withscores=True),
    }
    return {"kind": kind, "value": how[kind](key)}


def restore(url: str, state: Mapping[str, Any], *, later: bool = False) -> None:
    """Put it back. ``later``: with a field more in each entry and record, as a version to come may write it."""
    with redis.Redis.from_url(url) as r:
        for key, held in state.items():
            _write(r, key, held, later=later)


def _write(r: Any, key: str, held: Mapping[str, Any], *, later: bool) -> None:
    value = held["value"]
    if held["kind"] == "stream":
        for entry, fields in value:
            r.xadd(key, _raw({**fields, **({LATER: "1"} if later and "schema" in fields else {})}), id=entry)
        for name, group in held["groups"].items():
            r.xgroup_create(key, name, group["last"], mkstream=True)
            for entry, consumer in group["pending"]:
                r.xclaim(key, name, consumer, 0, [entry], force=True, justid=True)
    elif held["kind"] == "hash":
        fleet = "{fleet}" in key
        told = {name: _more(text) if later and fleet else text for name, text in value.items()}
        r.hset(key, mapping=_raw({**told, **({LATER: "1"} if later and not fleet else {})}))
    elif held["kind"] == "zset":
        r.zadd(key, dict(value))
    elif held["kind"] == "list":
        r.rpush(key, *(text.encode(ANY_BYTE) for text in value))
    else:
        r.set(key, value.encode(ANY_BYTE))


def _raw(texts: Mapping[str, str]) -> dict[Any, Any]:
    return {name.encode(ANY_BYTE): text.encode(ANY_BYTE) for name, text in texts.items()}


def _more(text: str) -> str:
    return json.dumps({**json.loads(text), LATER: {"deep": [1]}})


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder, RedisServer(valkey_binary()) as server:
        async with client(server.url) as c:
            await make(c, server.url, Path(folder))
            state = record(server.url)
    text = json.dumps(state, indent=1, sort_keys=True)
    # A time that is to come today is past when this is read: what is put off is due by then, a person has for ever.
    (_, soon), (_, late) = sorted(state[KEYS.due]["value"], key=lambda pair: pair[1])
    text = text.replace(f"{soon:.0f}", "1700000000000").replace(f"{late:.0f}", "4000000000000")
    Path(sys.argv[1]).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
