"""os.environ for runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from runtime.engine.environ import EnvironGuard
from runtime.engine.memory import ChatOverlay
from runtime.engine.state import CURRENT, RunState
from tests.support.history import Sessions


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[EnvironGuard]:
    monkeypatch.setenv("SHARED", "yes")
    made = EnvironGuard()
    made.install()
    yield made
    made.restore()
    made.remove()


def state() -> RunState:
    loop = asyncio.get_running_loop()
    return RunState(flow_id="f", loop=loop, chat=ChatOverlay(Sessions(), loop, session=None))


async def test_a_runs_changes_are_its_own(guard: EnvironGuard) -> None:
    async def one(value: str) -> tuple[str | None, str, bool, bool]:
        CURRENT.set(state())
        os.environ["OWN"] = value
        del os.environ["SHARED"]
        await asyncio.sleep(0)
        in_thread = await asyncio.to_thread(os.environ.get, "OWN")
        listed = dict(os.environ)
        return in_thread, os.environ["OWN"], "SHARED" in listed, listed["OWN"] == value

    told = await asyncio.gather(*(asyncio.create_task(one(v)) for v in "abc"))
    assert told == [(v, v, False, True) for v in "abc"]
    assert "OWN" not in os.environ
    assert os.environ["SHARED"] == "yes"


async def test_the_rules_of_os_environ_hold(guard: EnvironGuard) -> None:
    token = CURRENT.set(state())
    try:
        with pytest.raises(KeyError):
            os.environ["NOT_THERE"]
        with pytest.raises(KeyError):
            del os.environ["NOT_THERE"]
        with pytest.raises(TypeError):
            os.environ["NUMBER"] = 1
        before = len(os.environ)
        os.environ["NEW"] = "1"
        assert len(os.environ) == before + 1
        assert os.environ.pop("NEW") == "1"
        assert os.environ.setdefault("SHARED", "no") == "yes"
        assert os.environ.setdefault("OTHER", "set") == "set"
        os.environ.update({"MORE": "x"})
        assert os.getenv("MORE") == "x"
        assert os.environ.copy()["MORE"] == "x"
    finally:
        CURRENT.reset(token)
    assert os.getenv("MORE") is None


async def test_its_pairs_are_those_that_can_be_looked_up(guard: EnvironGuard) -> None:
    os.environ["NOT_UTF_8"] = os.fsdecode(b"\xff\xfe")
    token = CURRENT.set(state())
    try:
        pairs = os.environ.items()
        os.environ["OWN"] = "1"
        del os.environ["SHARED"]
        assert dict(pairs) == dict(os.environ) == {name: os.environ[name] for name in os.environ}
        assert ("OWN", "1") in pairs
        assert ("SHARED", "yes") not in pairs
        assert len(pairs) == len(os.environ)
    finally:
        CURRENT.reset(token)
    assert dict(os.environ.items()) == dict(os.environ)
    assert os.environ.pop("NOT_UTF_8") == os.fsdecode(b"\xff\xfe")
    assert dict(os.environ.items()) == dict(os.environ), "however the process changed meanwhile"
    os.environ["SHARED"] = "other"
    assert dict(os.environ.items()) == dict(os.environ)


def test_what_goes_around_it_is_undone(guard: EnvironGuard) -> None:
    os.environ["LEAKED"] = "1"
    del os.environ["SHARED"]
    guard.restore()
    assert "LEAKED" not in os.environ
    assert os.environ["SHARED"] == "yes"


def test_what_a_load_sets_is_kept(guard: EnvironGuard) -> None:
    os.environ["BY_AN_IMPORT"] = "1"
    guard.remember()
    guard.restore()
    assert os.environ.pop("BY_AN_IMPORT") == "1"
    guard.remember()


async def test_what_the_host_changes_between_runs_stands(guard: EnvironGuard) -> None:
    for value in ("first", "second"):
        os.environ["ROTATED"] = value
        for _ in range(2):
            guard.enter()
            assert os.environ["ROTATED"] == value
            guard.leave()
    guard.enter()
    guard.enter()
    os.environ["LEAKED"] = "1"
    guard.leave()
    assert "LEAKED" not in os.environ
    guard.leave()
    del os.environ["ROTATED"]
    guard.remember()


def test_outside_of_runs_it_is_the_plain_one(monkeypatch: pytest.MonkeyPatch, guard: EnvironGuard) -> None:
    monkeypatch.setattr(EnvironGuard, "_all", {guard})  # an engine of other tests may live in this process
    layer = type(os.environ)
    os.environ["PLAIN"] = "1"
    assert os.environ.pop("PLAIN") == "1"
    guard.remove()
    assert type(os.environ).__name__ == "_Environ"
    os.environ.__class__ = layer


async def test_an_engine_that_closes_takes_nothing_from_another(guard: EnvironGuard) -> None:
    other = EnvironGuard()
    other.install()
    other.install()  # as an engine that is prepared again
    other.remove()
    token = CURRENT.set(state())
    try:
        os.environ["OWN"] = "1"
    finally:
        CURRENT.reset(token)
    assert "OWN" not in os.environ
