"""TLS with an authority of our own, which the client must know and which must know the client."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.broker.client import Broker
from runtime.errors import BrokerUnavailable
from runtime.settings import RedisSettings
from shared_models.codec import new_event_id
from tests.support.hand import raw
from tests.support.harness import running
from tests.support.ring import all_ended, publish, results, write_ring


def address(port: int, folder: Path, **options: str) -> str:
    given = {"ssl_ca_certs": "ca.pem", "ssl_certfile": "server.pem", "ssl_keyfile": "key.pem", **options}
    query = "&".join(f"{name}={folder / value}" for name, value in given.items() if value)
    return f"rediss://127.0.0.1:{port}/0?{query}"


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


async def test_plain_text_is_refused(tls: tuple[int, Path]) -> None:
    broker = Broker.connect(f"redis://127.0.0.1:{tls[0]}/0", RedisSettings(command_timeout=2.0))
    with pytest.raises(BrokerUnavailable):
        await raw(broker, "PING")
    await broker.close()
