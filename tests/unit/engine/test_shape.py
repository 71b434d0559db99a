"""What is not a whole flow is refused in one sentence that names the component, without the engine."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.engine.shape import check_shape
from runtime.errors import FlowInvalid, FlowUnready
from tests.unit.engine.exports import edge, export, field, node

A, B = node("A-1"), node("B-1", text=field())


def without(flow: dict[str, Any], key: str) -> dict[str, Any]:
    """The node with one key less under ``data.node``."""
    body = {k: v for k, v in flow["data"]["node"].items() if k != key}
    return {**flow, "data": {**flow["data"], "node": body}}


@pytest.mark.parametrize(
    ("flow", "says"),
    [
        ({"flows": [export(A)]}, "project export"),
        ({"hello": 1}, "not the export of a Langflow flow"),
        ({"data": {"nodes": {}, "edges": []}}, "no list of nodes"),
        ({"data": {"nodes": [1], "edges": []}}, "a node has no data"),
        ({"data": {"nodes": [A], "edges": {}}}, "not the export"),
        (export(), "no components"),
        (export({"id": "n", "type": "noteNode", "data": {}}), "no components"),
        (export({"id": "A-1", "data": {"type": "A", "node": {"outputs": []}}}), "A-1 has no fields"),
    ],
)
def test_no_flow(flow: dict[str, Any], says: str) -> None:
    with pytest.raises(FlowInvalid) as caught:
        check_shape(flow, route="r")
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("flow", "says"),
    [
        (export(node("A-1", code="")), "0.x, it seems: component 'A' (A-1) carries no code"),
        (export(without(A, "outputs")), "component 'A' (A-1) carries no list of outputs"),
        (export(without(A, "outputs"), last_tested_version="0.6.19"), "saved by Langflow 0.6.19"),
        (export(A, edges=[edge("A-1", "Gone-1", "x")]), "the component 'Gone-1' does not exist"),
        (export(A, B, edges=[edge("A-1", "B-1", "gone")]), "component 'B' (B-1) has no field 'gone'"),
    ],
)
def test_a_flow_that_would_not_run_as_drawn(flow: dict[str, Any], says: str) -> None:
    with pytest.raises(FlowUnready) as caught:
        check_shape(flow, route="r")
    assert says in caught.value.message


@pytest.mark.parametrize(
    "flow",
    [
        export(A),
        export(A, B, edges=[edge("A-1", "B-1", "text")]),
        export(A, {"id": "n", "type": "noteNode", "data": {"node": {}}}),
        export(A, node("Loop-1", outputs=[{"name": "item"}]), edges=[edge("A-1", "Loop-1", "item")]),
        export(A)["data"],
    ],
    ids=["one", "connected", "with a note", "loop", "bare graph"],
)
def test_a_flow(flow: dict[str, Any]) -> None:
    check_shape(flow, route="r")
