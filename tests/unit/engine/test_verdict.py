"""What is not a whole flow is refused in one sentence that names the component."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.engine.verdict import check_shape
from runtime.errors import FlowInvalid
from tests.unit.engine.exports import edge, export, field, node

A, B = node("A-1"), node("B-1", text=field())


def without(flow: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The node with one key less under ``data.node``."""
    body = {k: v for k, v in flow["data"]["node"].items() if k not in keys}
    return {**flow, "data": {**flow["data"], "node": body}}


@pytest.mark.parametrize(
    ("flow", "says"),
    [
        ({"flows": [export(A)]}, "several flows"),
        ({"hello": 1}, "not a flow exported from Langflow"),
        ({"data": {"nodes": {}, "edges": []}}, "not a flow exported from Langflow"),
        ({"data": {"nodes": [1], "edges": []}}, "a node is not an object"),
        ({"data": {"nodes": [A], "edges": {}}}, "'edges' is not a list"),
        (export(), "no components"),
        (export({"id": "n", "type": "noteNode", "data": {}}), "only notes"),
        (export(A, A), "share the id 'A-1'"),
        (export(node("A-1", code="")), "A-1) has no saved source"),
        (export({"id": "A-1", "data": {"type": "A", "node": {"outputs": []}}}), "A-1) has no fields"),
        (export(A, edges=[edge("A-1", "Gone-1", "x")]), "no component 'Gone-1'"),
        (export(A, B, edges=[edge("A-1", "B-1", "gone")]), "B-1) has no field 'gone'"),
        (export(without(A, "outputs"), without(B, "outputs")), "older than 1.0"),
        (export(A, B, edges=[edge("A-1", "B-1", "x")], last_tested_version="1.2.0"), "saved by Langflow 1.2.0"),
    ],
)
def test_refused(flow: dict[str, Any], says: str) -> None:
    with pytest.raises(FlowInvalid) as caught:
        check_shape(flow)
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
def test_accepted(flow: dict[str, Any]) -> None:
    check_shape(flow)
