"""A gateway that is killed while it answers, for 25 rounds. ``python -m tests.chaos.gateways`` has a thousand."""

from __future__ import annotations

from tests.chaos.gateways import CLIENTS, run
from tests.support.servers import RedisServer


async def test_every_event_stands_once_in_the_stream_however_its_gateway_dies(valkey_server: RedisServer) -> None:
    valkey_server.execute("FLUSHALL")
    report = await run(valkey_server.url, rounds=25, seed=3)
    assert report.broken == []
    assert report.events == 25 * CLIENTS
    assert report.tries > report.events, "no request was cut off"
    assert report.repeats > 0, "no answer was lost"
