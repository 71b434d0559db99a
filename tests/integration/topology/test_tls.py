"""TLS with an authority of our own, which the client must know and which must know the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runtime.broker.client import Broker
from runtime.errors import BrokerUnavailable
from runtime.settings import RedisSettings
from shared_models.codec import new_event_id
from tests.support.command import headrace
from tests.support.hand import raw
from tests.support.harness import running
from tests.support.ring import all_ended, publish, results, write_ring
from tests.support.servers import redis_binary
from tests.support.topology import cluster, sentinel_set, tls_query


def address(port: int, folder: Path, **options: str) -> str:
    return f"rediss://127.0.0.1:{port}/0?{tls_query(folder, **options)}"


async def test_events_run_through_tls(tls: tuple[int, Path], tmp_path: Path) -> None:
    url, event = address(*tls), new_event_id()
    broker = Broker.connect(url, RedisSettings())
    async with running(url, write_ring(tmp_path)):
        await publish(broker, event)
        await all_ended(broker, [event])
    assert await results(broker) == {event: 1}
    await broker.close()


@pytest.mark.parametrize("left_out", ["ssl_ca_certs", "ssl_certfile"])
async def test_a_stranger_is_refused_on_either_side(tls: tuple[int, Path], left_out: str) -> None:
    more = {"ssl_keyfile": ""} if left_out == "ssl_certfile" else {}
    broker = Broker.connect(address(*tls, **{left_out: ""}, **more), RedisSettings())
    with pytest.raises(BrokerUnavailable):
        await raw(broker, "PING")
    await broker.close()


@pytest.mark.parametrize("made", [partial(sentinel_set, replicas=0, sentinels=1), cluster], ids=["sentinel", "cluster"])
async def test_events_run_through_tls_on_a_sentinel_set_and_on_a_cluster(
    made: Callable[..., Any], tls: tuple[int, Path], tmp_path: Path
) -> None:
    """Also the links between the servers, and what they tell of where the others are."""
    events = [new_event_id() for _ in range(20)]
    with made(redis_binary(), tls[1]) as place:
        broker = Broker.connect(place.url, RedisSettings())
        async with running(place.url, write_ring(tmp_path)):
            await asyncio.gather(*(publish(broker, event) for event in events))
            await all_ended(broker, events)
        assert await results(broker) == dict.fromkeys(events, 1)
        told = await asyncio.to_thread(headrace, "status", "--json", home=tmp_path, REDIS_URL=place.url)
        assert told.code == 0, told.err
        await broker.close()


async def test_plain_text_is_refused(tls: tuple[int, Path]) -> None:
    broker = Broker.connect(f"redis://127.0.0.1:{tls[0]}/0", RedisSettings(command_timeout=2.0))
    with pytest.raises(BrokerUnavailable):
        await raw(broker, "PING")
    await broker.close()
