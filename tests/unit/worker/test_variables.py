"""A run's variables: the event's over the route's, and only those that are allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from runtime.errors import EventFault, RouteFault
from runtime.registry.snapshot import Route
from runtime.worker import variables
from shared_models.route import RouteSpec


def route(folder: Path, **spec) -> Route:
    return Route("r", RouteSpec.model_validate(spec), "v", "", {}, folder / "r.json")


def test_sources_are_the_environment_files_and_literals(tmp_path):
    (tmp_path / "key").write_text("from-file\n")
    made = route(tmp_path, variables={"A": {"env": "X"}, "B": {"file": "key"}, "C": "literal", "D": 7})
    assert variables.resolve(made, {}, {"X": "1"}) == {"A": "1", "B": "from-file", "C": "literal", "D": "7"}
    (tmp_path / "key").write_text("rotated")
    assert variables.resolve(made, {}, {"X": "2"})["B"] == "rotated"


def test_a_source_that_is_not_there_is_the_routes_fault(tmp_path):
    with pytest.raises(RouteFault, match="variable A: the environment variable X is not set"):
        variables.resolve(route(tmp_path, variables={"A": {"env": "X"}}), {}, {})
    with pytest.raises(RouteFault, match=r"variable B: the file .*none cannot be read"):
        variables.resolve(route(tmp_path, variables={"B": {"file": "none"}}), {}, {})


def test_an_event_brings_only_what_the_route_allows(tmp_path):
    with pytest.raises(EventFault, match=r"'A'.*event_variables"):
        variables.resolve(route(tmp_path, variables={"A": "1"}), {"A": "2"}, {})
    allowed = route(tmp_path, variables={"A": "1"}, event_variables=["A"])
    assert variables.resolve(allowed, {"A": "2"}, {}) == {"A": "2"}
    assert variables.resolve(route(tmp_path, event_variables="any"), {"Z": "2"}, {}) == {"Z": "2"}
    with pytest.raises(EventFault, match="not a string"):
        variables.resolve(allowed, {"A": 2}, {})


def test_where_the_payload_is_the_flows_data_it_brings_no_variables():
    assert variables.brought_by({"variables": {"A": "1"}}, webhook=True) == {}
    assert variables.brought_by({"variables": {"A": "1"}}, webhook=False) == {"A": "1"}
    with pytest.raises(EventFault):
        variables.brought_by({"variables": [1]}, webhook=False)


def test_a_default_stands_in_where_the_source_is_absent_or_empty(tmp_path):
    spec = {"A": {"env": "X", "default": "d"}, "B": {"file": "none", "default": "d"}}
    assert variables.resolve(route(tmp_path, variables=spec), {}, {}) == {"A": "d", "B": "d"}
    assert variables.resolve(route(tmp_path, variables=spec), {}, {"X": ""})["A"] == "d"
    assert variables.resolve(route(tmp_path, variables=spec), {}, {"X": "1"})["A"] == "1"
    with pytest.raises(ValidationError, match="a default goes with env or file"):
        RouteSpec.model_validate({"variables": {"A": {"value": "v", "default": "d"}}})
