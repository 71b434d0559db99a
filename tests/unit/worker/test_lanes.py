"""Lanes: what closes keeps its lease until it has nothing in flight, and what comes back goes on where it was."""

from __future__ import annotations

from runtime.broker.keys import RouteKeys
from runtime.worker.lanes import Lane, Lanes

KEYS = RouteKeys("flows:a", "headrace")
OTHER = RouteKeys("flows:b", "headrace")


def lanes() -> tuple[Lanes, Lane]:
    made = Lanes()
    return made, made.open("a", KEYS)


def test_a_closed_lane_is_no_routes_and_yet_renewed():
    known, lane = lanes()
    lane.flights["1-1"] = "token"
    known.close(lane)
    assert known.get("a") is None
    assert known.rotated() == []
    assert list(known) == [lane]
    assert known.keys == [KEYS]
    assert known.done() == []
    lane.flights.clear()
    assert known.done() == [lane]
    assert list(known) == [lane]  # until its group was left
    known.forget(lane)
    assert list(known) == []


def test_a_route_that_comes_back_has_its_lane_again():
    known, lane = lanes()
    lane.listening = True
    lane.flights["1-1"] = "token"
    known.close(lane)
    again = known.open("a", KEYS)
    assert again is lane
    assert not again.closing
    assert again.listening
    assert list(known) == [lane]


def test_a_stream_that_another_route_reads_now_keeps_what_is_in_flight():
    known, lane = lanes()
    lane.flights["1-1"] = "token"
    known.close(lane)
    renamed = known.open("renamed", KEYS)
    assert renamed is not lane
    assert renamed.flights == {"1-1": "token"}
    lane.flights.pop("1-1")
    assert renamed.flights == {}
    assert list(known) == [renamed]


def test_a_route_that_moves_to_another_stream_has_two_lanes_for_a_while():
    known, lane = lanes()
    lane.flights["1-1"] = "token"
    known.close(lane)
    moved = known.open("a", OTHER)
    assert known.get("a") is moved
    assert known.keys == [OTHER, KEYS]
    known.close(lane)  # a second time is nothing
    assert list(known) == [moved, lane]


def test_an_identity_that_was_lost_has_nothing_in_flight_and_nothing_closed():
    known, lane = lanes()
    known.close(lane)
    kept = known.open("b", OTHER)
    kept.flights["1-1"] = "token"
    kept.listening = True
    known.reset()
    assert list(known) == [kept]
    assert (kept.flights, kept.listening) == ({}, False)
