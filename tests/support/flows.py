"""Builds real Langflow exports for tests, out of the engine's own component index and of components given as source.

An export made here has the shape of one that the Langflow UI downloads. ``Flow.add`` needs no engine import; only
``Flow.custom`` does, and its results are kept for the process.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
import textwrap
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.engine.base import FlowSource


@functools.cache
def component_index() -> Mapping[str, dict[str, Any]]:
    """Every component of the installed engine by type, as the UI would put it into a flow."""
    spec = importlib.util.find_spec("lfx")
    assert spec is not None and spec.submodule_search_locations
    path = Path(next(iter(spec.submodule_search_locations))) / "_assets" / "component_index.json"
    entries = json.loads(path.read_text())["entries"]
    return {kind: node for _, components in entries for kind, node in components.items()}


class Flow:
    """A flow under construction. ``add`` and ``custom`` return the component's id; ``connect`` joins two of them."""

    def __init__(self, name: str = "Test flow", *, flow_id: str | None = None, version: str | None = "1.13.0") -> None:
        self.name = name
        self.flow_id = flow_id or str(uuid.uuid5(uuid.NAMESPACE_OID, name))
        self.version = version
        self.nodes: list[dict[str, Any]] = []
        self.edges: list[dict[str, Any]] = []

    def add(self, kind: str, node_id: str | None = None, *, name: str | None = None, **values: Any) -> str:
        """Put a component of the index into the flow, with the given field values."""
        return self._put(kind, copy.deepcopy(component_index()[kind]), node_id, name, values)

    def custom(self, code: str, node_id: str | None = None, *, name: str | None = None, **values: Any) -> str:
        """Put a component given as source into the flow."""
        kind, node = _custom_node(textwrap.dedent(code))
        return self._put(kind, copy.deepcopy(node), node_id, name, values)

    def put(self, kind: str, node: Mapping[str, Any], node_id: str | None = None, **values: Any) -> str:
        """Put a component given as a frontend node into the flow."""
        return self._put(kind, copy.deepcopy(dict(node)), node_id, None, values)

    def _put(
        self, kind: str, node: dict[str, Any], node_id: str | None, name: str | None, values: Mapping[str, Any]
    ) -> str:
        node_id = node_id or f"{kind}-{len(self.nodes):05d}"
        if name:
            node["display_name"] = name
        template = node["template"]
        for field, value in values.items():
            if isinstance(value, Field):
                template.setdefault(field, {}).update(value.keys)
            else:
                template[field]["value"] = value
        node.setdefault("lf_version", self.version)
        self.nodes.append(
            {
                "id": node_id,
                "type": "genericNode",
                "position": {"x": 0, "y": 0},
                "data": {"id": node_id, "type": kind, "node": node, "showNode": True},
            }
        )
        return node_id

    def connect(self, source: str, output: str, target: str, field: str) -> None:
        """Feed ``target``'s field from ``source``'s output."""
        source_node, target_node = self.node(source), self.node(target)
        types = next((o["types"] for o in source_node["node"]["outputs"] if o["name"] == output), ["Message"])
        handle = {"dataType": source_node["type"], "id": source, "name": output, "output_types": types}
        template_field = target_node["node"]["template"].get(field)
        if template_field is None:  # a loop's own output takes the item back
            looped = next(o for o in target_node["node"]["outputs"] if o["name"] == field)
            target_handle = {
                "dataType": target_node["type"],
                "id": target,
                "name": field,
                "output_types": looped["types"],
            }
        else:
            target_handle = {
                "fieldName": field,
                "id": target,
                "inputTypes": template_field.get("input_types") or None,
                "type": template_field.get("type", "str"),
            }
        self.edges.append(
            {
                "id": f"edge-{source}-{output}-{target}-{field}",
                "source": source,
                "target": target,
                "sourceHandle": json.dumps(handle).replace('"', "œ"),
                "targetHandle": json.dumps(target_handle).replace('"', "œ"),
                "data": {"sourceHandle": handle, "targetHandle": target_handle},
            }
        )

    def node(self, node_id: str) -> dict[str, Any]:
        """What stands under ``data`` of a component."""
        return next(node["data"] for node in self.nodes if node["id"] == node_id)

    def template(self, node_id: str) -> dict[str, Any]:
        """A component's fields."""
        fields: dict[str, Any] = self.node(node_id)["node"]["template"]
        return fields

    def export(self) -> dict[str, Any]:
        """The flow as the UI exports it."""
        export: dict[str, Any] = {
            "id": self.flow_id,
            "name": self.name,
            "description": "",
            "endpoint_name": None,
            "is_component": False,
            "tags": [],
            "data": {"nodes": self.nodes, "edges": self.edges, "viewport": {"x": 0, "y": 0, "zoom": 1}},
        }
        if self.version:
            export["last_tested_version"] = self.version
        return copy.deepcopy(export)


class Field:
    """Keys of a field's description other than its value: ``Field(value="OPENAI_API_KEY", load_from_db=True)``."""

    def __init__(self, **keys: Any) -> None:
        self.keys = keys


@functools.cache
def _custom_node(code: str) -> tuple[str, dict[str, Any]]:
    from lfx.custom.custom_component.component import Component
    from lfx.custom.utils import build_custom_component_template

    node, instance = build_custom_component_template(Component(_code=code))
    return type(instance).__name__, node


def source(
    flow: Flow | Mapping[str, Any],
    *,
    route: str = "test",
    version: str | None = None,
    path: Path | None = None,
    **more: Any,
) -> FlowSource:
    """A FlowSource of a flow, as the registry would make it."""
    export = flow.export() if isinstance(flow, Flow) else flow
    path = path or Path(f"/nonexistent/flows/{route}.json")
    digest = version or uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(export, sort_keys=True, default=str)).hex * 2
    return FlowSource(
        route=route, version=digest, export=export, path=path, files_dir=path.with_suffix(".files"), **more
    )


# --- whole flows ----------------------------------------------------------------------------------------------------


def hello(*, name: str = "Hello") -> Flow:
    """ChatInput to ChatOutput: says back what it is told."""
    flow = Flow(name)
    chat_in = flow.add("ChatInput", "ChatInput-in")
    chat_out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(chat_in, "message", chat_out, "input_value")
    return flow


def text_hello(*, default: str = "saved default") -> Flow:
    """TextInput to ChatOutput."""
    flow = Flow("Text hello")
    text_in = flow.add("TextInput", "TextInput-in", input_value=default)
    chat_out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(text_in, "text", chat_out, "input_value")
    return flow


STUB_MODEL = [{"name": "stub-model", "provider": "OpenAI Compatible", "icon": "Plug", "metadata": {}}]
"""A model of the stub provider, as the UI stores a selection."""

_COMPONENT = """
from lfx.custom.custom_component.component import Component
from lfx.io import MessageTextInput, Output
from lfx.schema.message import Message


class {name}(Component):
    display_name = "{title}"
    inputs = [MessageTextInput(name="text", display_name="Text"){inputs}]
    outputs = [Output(name="out", display_name="Out", method="work")]

{body}
"""


def component(body: str, *, name: str = "Custom", title: str = "", inputs: str = "", imports: str = "") -> str:
    """The source of a component with a ``text`` field and a method ``work`` given as ``body``.

    ``inputs`` is more of the inputs list, ``imports`` more imports.
    """
    method = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    extra = f", {inputs}" if inputs else ""
    source = _COMPONENT.format(name=name, title=title or name, inputs=extra, body=method)
    return f"{imports}\n{source}" if imports else source


def through(body: str, *, output: str | None = "ChatOutput", **more: Any) -> Flow:
    """ChatInput to a component given by its ``work`` method to an output component, or to none."""
    flow = Flow(f"Through {uuid.uuid5(uuid.NAMESPACE_OID, body + repr(sorted(more.items())))}")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    values = more.pop("values", {})
    custom = flow.custom(component(body, **more), "Custom-it", **values)
    flow.connect(chat_in, "message", custom, "text")
    if output:
        out = flow.add(output, f"{output}-out")
        flow.connect(custom, "out", out, "input_value")
    return flow


def llm(*, model: Any = None, prompt: str | None = None, **values: Any) -> Flow:
    """ChatInput to a language model of the stub provider to ChatOutput."""
    flow = Flow(f"LLM {model}{prompt}{sorted(values)}")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    values = {"system_message": prompt, **values} if prompt else values
    made = flow.add("LanguageModelComponent", "LanguageModelComponent-llm", model=model or STUB_MODEL, **values)
    chat_out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(chat_in, "message", made, "input_value")
    flow.connect(made, "text_output", chat_out, "input_value")
    return flow


def agent(*tools: str, name: str = "Agent flow", **values: Any) -> Flow:
    """ChatInput to an agent of the stub provider, with tools given as component types, to ChatOutput."""
    flow = Flow(name)
    chat_in = flow.add("ChatInput", "ChatInput-in")
    made = flow.add("Agent", "Agent-it", model=STUB_MODEL, **values)
    chat_out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(chat_in, "message", made, "input_value")
    flow.connect(made, "response", chat_out, "input_value")
    for place, kind in enumerate(tools):
        tool = flow.add(kind, f"{kind}-tool{place}")
        as_tool(flow, tool)
        flow.connect(tool, "component_as_tool", made, "tools")
    return flow


def as_tool(flow: Flow, node_id: str) -> None:
    """Switch a component to tool mode, as the UI does."""
    node = flow.node(node_id)["node"]
    node["tool_mode"] = True
    node["outputs"] = [
        {
            "name": "component_as_tool",
            "display_name": "Toolset",
            "method": "to_toolkit",
            "types": ["Tool"],
            "selected": "Tool",
            "cache": True,
            "value": "__UNDEFINED__",
        }
    ]


def webhook() -> Flow:
    """Webhook to ChatOutput."""
    flow = Flow("Webhook flow")
    hook = flow.add("Webhook", "Webhook-in")
    chat_out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(hook, "output_data", chat_out, "input_value")
    return flow


def router(match: str = "left", **values: Any) -> Flow:
    """ChatInput to If-Else to one of two ChatOutputs."""
    flow = Flow("Router flow")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    fork = flow.add("ConditionalRouter", "ConditionalRouter-if", match_text=match, operator="contains", **values)
    yes = flow.add("ChatOutput", "ChatOutput-yes")
    no = flow.add("ChatOutput", "ChatOutput-no")
    flow.connect(chat_in, "message", fork, "input_text")
    flow.connect(fork, "true_result", yes, "input_value")
    flow.connect(fork, "false_result", no, "input_value")
    return flow


def two_outputs() -> Flow:
    """ChatInput to two ChatOutputs, the second by way of a component."""
    flow = Flow("Two outputs")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    first = flow.add("ChatOutput", "ChatOutput-first", name="First")
    shout = flow.custom(
        component("def work(self) -> Message:\n    return Message(text=self.text.upper())"), "Custom-up"
    )
    second = flow.add("ChatOutput", "ChatOutput-second", name="Second")
    flow.connect(chat_in, "message", first, "input_value")
    flow.connect(chat_in, "message", shout, "text")
    flow.connect(shout, "out", second, "input_value")
    return flow


def runs_flow(target: Flow, *, by: str = "id", name: str = "The parent") -> Flow:
    """ChatInput to Run Flow to ChatOutput, as the UI builds it when a flow is chosen in its drop-down."""
    flow = Flow(name)
    chat_in = flow.add("ChatInput", "ChatInput-in")
    runs = flow.add(
        "RunFlow",
        "RunFlow-it",
        flow_name_selected=target.name if by == "name" else "Renamed since",
        flow_id_selected=target.flow_id if by == "id" else "",
    )
    node = flow.node(runs)["node"]
    given = copy.deepcopy(target.template("ChatInput-in")["input_value"])
    given.update(name="ChatInput-in~input_value", input_types=["Message"], value="")
    node["template"]["ChatInput-in~input_value"] = given
    told = copy.deepcopy(target.node("ChatOutput-out")["node"]["outputs"][0])
    told.update(name="ChatOutput-out~message", method="", tool_mode=False)
    node["outputs"] = [told]
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(chat_in, "message", runs, "ChatInput-in~input_value")
    flow.connect(runs, "ChatOutput-out~message", out, "input_value")
    return flow


def asks(*, name: str = "Asks a person", fallback: bool = False) -> Flow:
    """ChatInput to a Human Input to a Chat Output for each branch, which a component marks with the branch's name."""
    flow = Flow(name)
    chat_in = flow.add("ChatInput", "ChatInput-in")
    ask(flow, "ask", chat_in, "message", fallback=fallback)
    return flow


def ask(flow: Flow, name: str, source: str, output: str, *, fallback: bool = False) -> None:
    """Put a Human Input into a flow, and a Chat Output behind each branch: ``approve: what it was asked``."""
    timeout = Field(value={"value": 1, "unit": "Minutes"}, show=fallback)  # hidden, the engine takes its default
    human = flow.add("HumanInput", f"HumanInput-{name}", enable_fallback=fallback, timeout=timeout)
    node = flow.node(human)["node"]
    if fallback:
        node["outputs"].append({**node["outputs"][0], "name": "branch_fallback", "display_name": "Fallback"})
    flow.connect(source, output, human, "prompt")
    for branch in ("approve", "reject", *(["fallback"] if fallback else [])):
        body = f"def work(self) -> Message:\n    return Message(text='{branch}: ' + self.text)"
        said = flow.custom(component(body, name=f"Say{branch.title()}"), f"Custom-{name}-{branch}")
        out = flow.add("ChatOutput", f"ChatOutput-{name}-{branch}")
        flow.connect(human, f"branch_{branch}", said, "text")
        flow.connect(said, "out", out, "input_value")


def careful_agent(*actions: str, name: str = "Careful agent") -> Flow:
    """An agent whose calculator needs a person's approval."""
    flow = agent("CalculatorComponent", name=name)
    approve(flow, "CalculatorComponent-tool0", "evaluate_expression", *actions)
    return flow


def approve(flow: Flow, tool: str, call: str, *actions: str) -> None:
    """Have a tool wait for a person's approval, as the UI sets it."""
    row = {
        "name": call,
        "description": "Calculates.",
        "display_description": "Calculates.",
        "tags": [call],
        "status": True,
        "approval_actions": list(actions or ("approve", "reject", "edit")),
    }
    flow.template(tool)["tools_metadata"] = {
        "_input_type": "ToolsInput",
        "name": "tools_metadata",
        "type": "tools",
        "show": True,
        "value": [row],
    }
