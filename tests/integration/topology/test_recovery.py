"""A worker is killed on each kind of Redis that can be addressed: another takes over what it held."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runtime.broker.client import Broker
from runtime.settings import RedisSettings
from shared_models.codec import downstream_event_id, new_event_id
from shared_models.result import RunStatus
from tests.support.harness import running, worker_settings
from tests.support.ledger import LedgerEngine, starts, worker_process
from tests.support.real import until
from tests.support.ring import FIRST, SECOND, all_ended, publish, results, write_ring
from tests.support.servers import RedisServer, valkey_binary
from tests.support.topology import cluster, sentinel_set

Topology = Callable[[str], AbstractContextManager[Any]]


@pytest.mark.parametrize(
    "made",
    [RedisServer, partial(sentinel_set, replicas=0, sentinels=1), cluster],
    ids=["single", "sentinel", "cluster"],
)
async def test_t4_what_a_killed_worker_held_is_recovered_by_another(made: Topology, tmp_path: Path) -> None:
    """In the midst of the runs of both routes, which publish to streams that may lie elsewhere; once each."""
    flows, ledger, go = write_ring(tmp_path / "flows"), tmp_path / "ledger", tmp_path / "go"
    with made(valkey_binary()) as place:
        broker = Broker.connect(place.url, RedisSettings())
        events = [new_event_id() for _ in range(6)]
        with worker_process(place.url, flows, ledger, lease=1.5) as first:
            for event in events:
                await publish(broker, event, payload={"until": str(go)})
            await until(lambda: len(starts(ledger)) == len(events))
            first.kill_all()
        go.touch()
        settings = worker_settings(lease=1.5)
        async with running(place.url, flows, engine=LedgerEngine(str(ledger)), settings=settings) as second:
            await all_ended(broker, events)
            for event in events:
                for keys, found in ((FIRST, event), (SECOND, downstream_event_id(event, 0, 0))):
                    record = await broker.runs.get(keys, found)
                    assert record is not None
                    assert (record.status, record.worker) == (RunStatus.COMPLETED, second.report.worker)
        assert {event: len(starts(ledger, event)) for event in events} == dict.fromkeys(events, 2)
        assert await results(broker) == dict.fromkeys(events, 1)
        await broker.close()
