"""Groups: taken apart as the engine does it, so that fields, tweaks and checks meet the components within."""

from __future__ import annotations

import copy
from typing import Any

from runtime.engine.export import read_export
from runtime.engine.groups import flatten
from runtime.engine.reach import running
from tests.integration.engine.conftest import Runner
from tests.support import flows

WORK = "def work(self) -> Message:\n    return Message(text=f'{self.text}{self.mark}')"
MARK = 'MessageTextInput(name="mark", display_name="Mark", value="?")'


def group(node_id: str, inner: flows.Flow, fields: dict[str, tuple[str, str]], out: tuple[str, str]) -> dict[str, Any]:
    """A node that holds a flow; ``fields`` are (component, field) by the group's own field name."""
    template = {}
    for name, (component, field) in fields.items():
        described = copy.deepcopy(inner.template(component)[field])
        template[name] = {**described, "proxy": {"id": component, "field": field}}
    output = {"name": f"{out[0]}_{out[1]}", "display_name": "Out", "types": ["Message"], "method": "work"}
    output["proxy"] = {"id": out[0], "name": out[1], "nodeDisplayName": "Custom"}
    body = {
        "display_name": "Group",
        "flow": {"name": "Group", "data": {"nodes": inner.nodes, "edges": inner.edges}},
        "template": template,
        "outputs": [output],
    }
    return {"id": node_id, "type": "genericNode", "data": {"id": node_id, "type": "GroupNode", "node": body}}


def connect_group(flow: flows.Flow, node: dict[str, Any], before: str, after: str, entry: str) -> None:
    """``before`` to the group's ``entry`` field, the group's output to ``after``."""
    proxy = node["data"]["node"]["template"][entry]["proxy"]
    output = node["data"]["node"]["outputs"][0]
    into = {"fieldName": entry, "id": node["id"], "inputTypes": ["Message"], "type": "str", "proxy": proxy}
    start = {"dataType": "ChatInput", "id": before, "name": "message", "output_types": ["Message"]}
    out_of = {"dataType": "GroupNode", "id": node["id"], "name": output["name"], "output_types": ["Message"]}
    end = {"fieldName": "input_value", "id": after, "inputTypes": ["Message"], "type": "str"}
    for source, target, handles in ((before, node["id"], (start, into)), (node["id"], after, (out_of, end))):
        data = {"sourceHandle": handles[0], "targetHandle": handles[1]}
        flow.edges.append({"id": f"{source}-{target}", "source": source, "target": target, "data": data})


def grouped(*, nested: bool = False) -> flows.Flow:
    """ChatInput to a group of two components (in a group of its own, if nested) to ChatOutput."""
    inner = flows.Flow("Inner")
    code = flows.component(WORK, inputs=MARK)
    first = inner.custom(code, "Custom-a")
    second = inner.custom(code, "Custom-b", mark="!")
    inner.connect(first, "out", second, "text")
    fields = {"text_a": ("Custom-a", "text"), "mark_a": ("Custom-a", "mark")}
    node = group("GroupNode-1", inner, fields, ("Custom-b", "out"))
    node["data"]["node"]["template"]["mark_a"]["value"] = "+"
    if nested:
        around = flows.Flow("Around")
        around.nodes.append(node)
        fields = {"text_x": ("GroupNode-1", "text_a"), "mark_x": ("GroupNode-1", "mark_a")}
        node = group("GroupNode-2", around, fields, ("GroupNode-1", "Custom-b_out"))
    flow = flows.Flow("Grouped" + ("twice" if nested else ""))
    chat_in = flow.add("ChatInput", "ChatInput-in")
    flow.nodes.append(node)
    chat_out = flow.add("ChatOutput", "ChatOutput-out")
    connect_group(flow, node, chat_in, chat_out, "text_x" if nested else "text_a")
    return flow


def shape(data: Any) -> tuple[Any, Any, Any]:
    """What a graph is, without the order in which it is written."""
    edges = {
        (e["source"], e["data"]["sourceHandle"]["name"], e["target"], e["data"]["targetHandle"]["fieldName"])
        for e in data["edges"]
    }
    marks = {
        n["id"]: n["data"]["node"]["template"]["mark"]["value"] for n in data["nodes"] if n["id"].startswith("Custom")
    }
    return {n["id"] for n in data["nodes"]}, edges, marks


async def test_groups_are_taken_apart_as_the_engine_does(run: Runner) -> None:
    from lfx.graph.graph.utils import process_flow

    for nested in (False, True):
        data = grouped(nested=nested).export()["data"]
        before = copy.deepcopy(data)
        assert shape(flatten(data)) == shape(process_flow(data))
        assert data == before


async def test_a_grouped_flow_runs_and_takes_tweaks(run: Runner) -> None:
    for nested in (False, True):
        flow = grouped(nested=nested)
        # The engine loses what the outer of two groups holds for the inner one's components; so then do we.
        assert await run.text(flow, "hi") == ("hi?!" if nested else "hi+!")
        tweaks = {"Custom-a": {"mark": "*"}}
        payload = {"input_value": "hi", "tweaks": tweaks}
        assert await run.text(flow, payload=payload, tweaks_allowed=True) == "hi*!"


async def test_what_is_in_a_group_runs(run: Runner) -> None:
    for nested in (False, True):
        export = read_export(grouped(nested=nested).export(), route="r")
        assert running(export) == {"ChatInput-in", "Custom-a", "Custom-b", "ChatOutput-out"}
        assert ("Custom-a", "text") in export.fed


async def test_a_graph_without_groups_is_not_copied(run: Runner) -> None:
    data = flows.hello().export()["data"]
    assert flatten(data) is data
