"""The benchmarks' own harness works: on the echo engine, and without a word about how fast anything is."""

from __future__ import annotations

from pathlib import Path

import redis

from tests.benchmarks import streams
from tests.benchmarks.figures import Row, quantile
from tests.benchmarks.gateway import steady as steady_requests
from tests.benchmarks.noop import echo_flows, steady
from tests.benchmarks.stack import stack
from tests.support.gateway import gateway_process, route_entry
from tests.support.harness import client


async def test_a_closed_loop_and_a_deep_stream_are_measured(tmp_path: Path) -> None:
    with stack(echo_flows(tmp_path / "flows"), "--engine", "echo", "--concurrency", "4") as running:
        sample = await running.measure("echo", in_flight=4, seconds=0.2)
        assert sample.events == len(sample.latencies) >= 4
        assert sample.cpu > 0
        assert float(sample.more["scripts"]) >= 2, "an event is begun and settled"
        with redis.Redis.from_url(running.url) as client:
            deep = steady(running, client, 50, 0.2)
        assert deep.events > 0
        assert {"Headrace events/s", "Headrace CPU ms", "Headrace round trips"} <= deep.values("Headrace").keys()


async def test_an_open_loop_measures_a_gateway(tmp_path: Path, valkey_url: str) -> None:
    async with client(valkey_url) as c:
        await c.broker.fleet.register([route_entry("hello")])
    with gateway_process(valkey_url, tmp_path) as running:
        load = await steady_requests(running.url, "/v1/routes/hello/events", rate=50, seconds=0.2)
    assert (len(load.latencies), load.statuses) == (10, {202: 10})


async def test_open_streams_and_reconnects_are_measured() -> None:
    opened, storm = await streams.measure(quick=True)
    assert (opened.reached, storm.reached) == (True, True)
    assert storm.values["lines"] == 5 * 51


def test_a_row_tells_whether_its_target_is_reached() -> None:
    assert Row("x", {}, 0.19, "<= 0.2").reached is True
    assert Row("x", {}, 5.9, ">= 6").reached is False
    assert Row("x", {}, 5.9).reached is None
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
