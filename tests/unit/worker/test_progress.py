"""Progress: bounded, written together, never in a run's way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.broker.keys import RouteKeys
from runtime.errors import BrokerUnavailable
from runtime.worker import progress
from runtime.worker.execution import Aborted, Execution
from runtime.worker.flights import Abort, Flight
from runtime.worker.progress import Progress
from shared_models.result import RunEventType

KEYS = RouteKeys("flows:a", "headrace")


class Feeds:
    """Keeps what is written; fails or waits where it is told to."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.writes = 0
        self.asked = 0
        self.fail = False
        self.hang: asyncio.Event | None = None

    async def append(self, keys: RouteKeys, event_id: str, lines: Any) -> None:
        self.writes += 1
        if self.hang is not None:
            await self.hang.wait()
        if self.fail:
            raise BrokerUnavailable
        self.written += lines

    async def followed(self, keys: RouteKeys, event_id: str) -> bool:
        self.asked += 1
        return False


@pytest.fixture
def feeds() -> Feeds:
    return Feeds()


def made(feeds: Feeds, *, wanted: bool = True) -> Progress:
    return Progress(feeds, KEYS, "e1", wanted=wanted)


def tell(one: Progress, count: int, kind: RunEventType = RunEventType.COMPONENT_ENDED) -> None:
    for n in range(count):
        one.emit(kind, {"n": n})


async def test_what_comes_together_is_written_together_and_nothing_after_the_end(feeds):
    one = made(feeds)
    tell(one, 50)
    await one.close()
    tell(one, 1)
    assert ([line.data["n"] for line in feeds.written], feeds.writes) == (list(range(50)), 1)


async def test_unasked_nothing_is_written_and_a_short_run_asks_nothing(feeds):
    one = made(feeds, wanted=False)
    tell(one, 50)
    await one.close()
    assert (feeds.writes, feeds.asked) == (0, 0)


async def test_what_is_kept_is_bounded_and_the_loss_is_told(feeds):
    one = made(feeds, wanted=False)
    tell(one, progress.MOST + 10)
    one.want()
    await one.close()
    assert (feeds.written[0].type, feeds.written[0].data) == (RunEventType.GAP, {"lost": 10})
    assert [line.data["n"] for line in feeds.written[1:]] == list(range(10, progress.MOST + 10))


async def test_a_write_that_fails_is_not_repeated_and_the_loss_is_told(feeds, monkeypatch):
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    feeds.fail = True
    one = made(feeds)
    tell(one, 3)
    while not feeds.writes:
        await asyncio.sleep(0)
    feeds.fail = False
    await asyncio.sleep(0)
    tell(one, 1)
    await one.close()
    assert [(line.type.value, line.data) for line in feeds.written] == [
        ("gap", {"lost": 3}),
        ("component_ended", {"n": 0}),
    ]


async def test_a_redis_that_does_not_answer_holds_up_no_run(feeds, monkeypatch):
    monkeypatch.setattr(progress, "LAST_LINES", 0.05)
    feeds.hang = asyncio.Event()
    one = made(feeds)
    tell(one, 3)
    await asyncio.wait_for(one.close(), 5)
    assert feeds.written == []


async def test_tokens_of_a_moment_are_one_line(feeds):
    one = made(feeds)
    for message in ("a", "a", "b", "a"):
        one.emit(RunEventType.TOKEN, {"text": f"{message}.", "message_id": message})
    await one.close()
    assert [line.data for line in feeds.written] == [
        {"text": "a.a.", "message_id": "a"},
        {"text": "b.", "message_id": "b"},
        {"text": "a.", "message_id": "a"},
    ]


async def test_a_loss_that_nothing_follows_is_told_at_the_end(feeds, monkeypatch):
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    feeds.fail = True
    one = made(feeds)
    tell(one, 3)
    while not feeds.writes:
        await asyncio.sleep(0)
    feeds.fail = False
    await one.close()
    assert [(line.type.value, line.data) for line in feeds.written] == [("gap", {"lost": 3})]


async def test_what_a_run_tells_after_another_has_taken_it_is_not_written(feeds, monkeypatch):
    """Not even while it takes its time to end."""
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    ended = asyncio.Event()

    class Slow:
        async def run(self, flow: Any, request: Any, history: Any, emit: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                emit(RunEventType.COMPONENT_ENDED, {})
                while not (feeds.writes or ended.is_set()):
                    asyncio.get_running_loop().call_soon(ended.set)
                    await asyncio.sleep(0.02)

    clock, request = SimpleNamespace(lag_of=lambda *_: 0.0), SimpleNamespace(stream=True, tenant_id=None)
    execution = Execution(SimpleNamespace(feeds=feeds), Slow(), clock, SimpleNamespace(named=lambda _: False))
    monkeypatch.setattr(execution, "_request", lambda *_: request)
    route = SimpleNamespace(spec=SimpleNamespace(timeout=60.0))
    claim = SimpleNamespace(keys=KEYS, event_id="e1", token="w.1")
    flight = Flight(SimpleNamespace(name="a"), "1-0")
    active = SimpleNamespace(route=route, flow=None)
    work = SimpleNamespace(flight=flight, claim=claim, active=active, followed=False)
    running = asyncio.create_task(execution.run(work))
    while flight._over is None:
        await asyncio.sleep(0)
    flight.end(Abort.LOST)
    with pytest.raises(Aborted):
        await running
    assert feeds.writes == 0
