"""Who runs alone, and in whose process."""

from __future__ import annotations

import asyncio

import pytest

from runtime.worker import suspects
from runtime.worker.suspects import Suspects


@pytest.fixture
def alone():
    made = Suspects[str]()
    for number in range(3):
        made.ask(("a", f"{number}-0"))
    made.ask(("b", "9-0"))
    return made


async def test_a_child_runs_those_of_its_route_one_after_the_other(alone):
    alone.give(("a", "0-0"), "child")
    assert [await alone.next("child", "a"), await alone.next("child", "a")] == ["1-0", "2-0"]
    assert alone.waiting == [("b", "9-0")]


async def test_what_is_asked_for_twice_runs_once(alone):
    alone.give(("a", "0-0"), "child")
    alone.ask(("a", "0-0"))
    assert ("a", "0-0") not in alone.waiting


async def test_what_a_child_had_when_it_ended_may_be_asked_for_again(alone):
    alone.give(("a", "0-0"), "child")
    alone.ended("child")
    alone.ask(("a", "0-0"))
    assert alone.waiting[-1] == ("a", "0-0")


async def test_a_child_that_waits_is_given_the_next_of_its_route_only():
    alone = Suspects[str]()
    next_one = asyncio.create_task(alone.next("child", "a"))
    await asyncio.sleep(0)
    alone.ask(("b", "1-0"))
    alone.ask(("a", "2-0"))
    alone.ask(("a", "3-0"))
    assert await next_one == "2-0"
    assert alone.waiting == [("b", "1-0"), ("a", "3-0")]


async def test_a_child_that_waits_in_vain_is_to_end(monkeypatch):
    monkeypatch.setattr(suspects, "LINGERS", 0.01)
    assert await Suspects[str]().next("child", "a") == ""


async def test_a_child_leaves_its_place_to_others_after_its_turn(alone, monkeypatch):
    monkeypatch.setattr(suspects, "IN_TURN", 2)
    alone.give(("a", "0-0"), "child")
    assert [await alone.next("child", "a"), await alone.next("child", "a")] == ["1-0", ""]
    assert alone.waiting == [("a", "2-0"), ("b", "9-0")]


async def test_a_child_that_waits_holds_no_place_and_ends_where_it_is_wanted():
    alone = Suspects[str]()
    alone.ask(("a", "0-0"))
    alone.give(("a", "0-0"), "child")
    assert alone.busy == 1
    last = asyncio.create_task(alone.next("child", "a"))
    await asyncio.sleep(0)
    alone.ask(("b", "1-0"))
    assert alone.busy == 0
    alone.dismiss()
    assert await last == ""
