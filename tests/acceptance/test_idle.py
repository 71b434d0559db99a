"""A worker whose routes are idle: what it asks Redis, and that it still finds what nobody tells it of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.broker.keys import RouteKeys
from runtime.broker.scripts import script
from tests.support.hand import Hand, raw
from tests.support.harness import DEADLINE, Client, client, running, worker_settings, write_flow

ROUTES = 12

SOON = 5.0
"""Seconds within which a look finds what makes no noise, with the settings of these tests."""


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[Callable[[], Awaitable[list[str]]]]:
    """What the server is sent from now on, command by command as words."""
    async with client(url) as watcher, watcher.redis.monitor() as monitor:

        async def heard() -> list[str]:
            told: dict[str, Any] = await monitor.next_command()
            return str(told["command"]).split(" ")

        yield heard


def flows(folder: Path, count: int = ROUTES) -> Path:
    for n in range(count):
        write_flow(folder, f"r{n}")
    return folder


async def test_many_idle_routes_cost_one_command_a_look(server_url: str, tmp_path: Path) -> None:
    """Each look at all of them is one call of one script, whatever it looks for; nothing is asked route by route."""
    names = {script(name).sha: name for name in ("fetch", "glance", "patrol", "sweep", "renew", "count")}
    keys = {"glance": 4 * ROUTES, "patrol": 3 * ROUTES, "renew": ROUTES}
    async with running(server_url, flows(tmp_path)), listening(server_url) as heard:
        calls: list[tuple[str, int]] = []
        async with asyncio.timeout(DEADLINE):
            while calls.count(("glance", keys["glance"])) < 4:
                words = await heard()
                if words[0].upper() == "EVALSHA":
                    calls.append((names.get(words[1], words[1]), int(words[2])))
    calls = calls[calls.index(("glance", keys["glance"])) :]  # before it, they were fetched from
    kinds = [name for name, _ in calls]
    assert set(kinds) <= set(keys)
    assert all(count == keys[name] for name, count in calls), calls
    assert "patrol" in kinds


async def test_a_quiet_route_is_fetched_from_before_its_consumer_counts_as_idle(
    server_url: str, tmp_path: Path
) -> None:
    """Else a worker that has lost its lease while it runs something for long, and fetches nothing, counts as gone."""
    fetch, fetched = script("fetch").sha, 0
    settings = worker_settings(reclaim_idle=1.0, poll_interval=60.0, lease=60.0)
    async with running(server_url, flows(tmp_path, 1), settings=settings), listening(server_url) as heard:
        async with asyncio.timeout(DEADLINE):
            while fetched < 4:
                fetched += fetch in await heard()


async def test_an_entry_that_a_worker_parked_before_it_went_is_run_soon(server_url: str, tmp_path: Path) -> None:
    """Parking makes no noise: a worker that idles beside it has to look."""
    keys = RouteKeys("flows:r1", "headrace")
    async with client(server_url) as one:
        gone = await Hand.ready(one.broker, "gone", keys)
        event = await one.send(keys.stream, {"input_value": "x"})
        attempt = await gone.begin(await gone.one(), event)
        async with running(server_url, flows(tmp_path, 3)):
            await gone.release(attempt)
            record = await one.run(keys, event, timeout=SOON)
    assert record.attempts == 1


async def test_a_retry_is_awaited_by_redis_clock(
    server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose clock is ahead of Redis' would else fetch all the time until the entry is due."""
    keys, fetch, fetched = RouteKeys("flows:r1", "headrace"), script("fetch").sha, 0
    clock = SimpleNamespace(time=lambda: time.time() + 3.0, monotonic=time.monotonic)
    monkeypatch.setattr("runtime.worker.consumer.time", clock)
    async with client(server_url) as one:
        other = await Hand.ready(one.broker, "other", keys)
        event = await one.send(keys.stream, {"input_value": "x"})
        await other.retry(await other.begin(await other.one(), event), 1.0)
        async with listening(server_url) as heard, running(server_url, flows(tmp_path, 2)):
            ended = asyncio.create_task(one.run(keys, event, timeout=SOON))
            while not ended.done():
                fetched += fetch in await heard()
            assert (await ended).attempts == 2
    assert fetched < 20


@pytest.mark.parametrize("loss", ["everything", "group", "lease"])
async def test_what_redis_has_lost_is_made_anew_without_any_event(server_url: str, tmp_path: Path, loss: str) -> None:
    keys = RouteKeys("flows:r1", "headrace")
    async with running(server_url, flows(tmp_path, 3)) as worker, client(server_url) as one:
        async with listening(server_url) as heard:
            if loss == "everything":
                await one.redis.flushall()
            elif loss == "group":
                await one.redis.xgroup_destroy(keys.stream, keys.group)
            else:
                await one.redis.zrem(keys.leases, worker.report.worker)
            async with asyncio.timeout(SOON):
                while not await whole(one, keys, worker.report.worker):
                    await heard()
        event = await one.send(keys.stream, {"input_value": "x"})
        await one.run(keys, event)


async def whole(one: Client, keys: RouteKeys, worker: str) -> bool:
    """Whether the worker can be handed an entry of the route."""
    lease = await one.redis.zscore(keys.leases, worker)
    return lease is not None and lease > 0 and await one.redis.exists(keys.stream) == 1 and await has_group(one, keys)


async def has_group(one: Client, keys: RouteKeys) -> bool:
    return any(group["name"] == keys.group for group in await one.redis.xinfo_groups(keys.stream))


async def test_a_group_that_was_set_back_is_read_again(server_url: str, tmp_path: Path) -> None:
    keys = RouteKeys("flows:r1", "headrace")
    async with client(server_url) as one:
        hand = await Hand.ready(one.broker, "other", keys)
        event = await one.send(keys.stream, {"input_value": "x"})
        await raw(one.broker, "XGROUP", "SETID", keys.stream, keys.group, "$")  # as if it were read
        async with running(server_url, flows(tmp_path, 3)):
            assert (await hand.look()).deliveries == ()
            await raw(one.broker, "XGROUP", "SETID", keys.stream, keys.group, "0")
            await one.run(keys, event, timeout=SOON)
