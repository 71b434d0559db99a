"""Flows are checked in a process that a bad one may harm; the checker and the other flows go on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runtime.engine.base import FlowSource
from runtime.engine.check import check_flow, check_flows
from runtime.engine.report import FlowReport, Verdict
from runtime.engine.upgrade import ComponentState
from tests.integration.engine.test_upgrade import old_agent
from tests.support import flows

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

HANG = 6.0
CANARY = "canary-4711-value"
WORK = "def work(self) -> Message:\n    return Message(text=self.text)"


def odd(body: str, name: str) -> dict[str, Any]:
    """ChatInput to a component whose source runs ``body`` when it is loaded, to ChatOutput."""
    flow = flows.through(WORK)
    flow.name = name
    code = flow.template("Custom-it")["code"]
    code["value"] = f"{code['value']}\n\n{body}\n"
    # The engine runs a module's imports and definitions: a class body is one.
    return flow.export()


def at_load(statements: str) -> str:
    """A class whose body runs when the component's source is loaded."""
    return "class Odd:\n    " + statements.replace("\n", "\n    ")


def chained(edges: list[tuple[str, str]]) -> dict[str, Any]:
    """Pass-through components connected as told."""
    flow = flows.Flow("Round", version="1.3.0")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    out = flow.add("ChatOutput", "ChatOutput-out")
    for node_id in sorted({end for edge in edges for end in edge}):
        flow.custom(flows.component(WORK), node_id)
    for source, target in edges:
        flow.connect(source, "out", target, "text")
    flow.connect(chat_in, "message", edges[0][0], "text")
    flow.connect(edges[-1][0], "out", out, "input_value")
    return flow.export()


def of_0_4() -> dict[str, Any]:
    """A flow as Langflow 0.x saved it: no source, no outputs, handles as strings."""

    def node(node_id: str, **fields: Any) -> dict[str, Any]:
        template = {"_type": node_id.partition("-")[0], **fields}
        body = {"template": template, "base_classes": ["Chain"], "display_name": node_id.partition("-")[0]}
        return {"id": node_id, "type": "genericNode", "data": {"id": node_id, "type": template["_type"], "node": body}}

    edge = {
        "source": "ChatOpenAI-1",
        "target": "LLMChain-1",
        "sourceHandle": "ChatOpenAI|ChatOpenAI-1|BaseLanguageModel",
        "targetHandle": "BaseLanguageModel|llm|LLMChain-1",
    }
    nodes = [node("ChatOpenAI-1", model_name={"value": "gpt-3.5-turbo"}), node("LLMChain-1", llm={"type": "other"})]
    return {"name": "Old", "data": {"nodes": nodes, "edges": [edge]}}


def of_0_6() -> dict[str, Any]:
    """A flow of 0.6: sources are saved, in terms of an interface that is gone; outputs are not."""
    flow = flows.hello(name="Of 0.6")
    flow.version = None
    for node in flow.nodes:
        body = node["data"]["node"]
        for key in ("lf_version", "outputs"):
            del body[key]
        kind = node["data"]["type"]
        body["template"]["code"]["value"] = (
            "from langflow import CustomComponent\nfrom langflow.field_typing import Text\n"
            "from langflow.schema import Record\n\n"
            f"class {kind}(CustomComponent):\n    display_name = {kind!r}\n\n"
            "    def build(self, input_value: str = '') -> Text:\n        return input_value\n"
        )
    handles = flow.edges[0]["data"]
    handles["sourceHandle"] = {"baseClasses": ["object", "Text", "str"], "dataType": "ChatInput", "id": "ChatInput-in"}
    return flow.export()


def of_1_1() -> dict[str, Any]:
    """A component of 1.1 that imports what has moved since."""
    flow = flows.hello(name="Of 1.1")
    flow.version = None
    flow.node("ChatInput-in")["node"]["lf_version"] = "1.1.4"
    code = flow.template("ChatInput-in")["code"]
    code["value"] = "from langflow.base.gone_since import Thing\n" + code["value"]
    return flow.export()


def parent() -> dict[str, Any]:
    """A flow that runs a child which is not there."""
    flow = flows.Flow("Parent")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    child = flow.add("RunFlow", "RunFlow-it", flow_name_selected="Nowhere", flow_id_selected="no-such-id")
    flow.template(child)["text"] = {"type": "str", "show": True, "input_types": ["Message"], "value": ""}
    flow.node(child)["node"]["outputs"] = [{"name": "out", "types": ["Message"], "method": "m", "display_name": "Out"}]
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(chat_in, "message", child, "text")
    flow.connect(child, "out", out, "input_value")
    return flow.export()


def needs_key() -> dict[str, Any]:
    """A flow with a model of OpenAI's."""
    return flows.llm(model=[{"name": "m", "provider": "OpenAI", "metadata": {}}]).export()


def every_flow() -> dict[str, Any]:
    """All of them, good and bad, in the order in which they are checked."""
    return {
        "good": flows.hello().export(),
        "exits": odd(at_load("import os\nos._exit(3)"), "Exits"),
        "after-exit": flows.hello(name="After").export(),
        "sys-exits": odd(at_load("raise SystemExit(4)"), "Sys exits"),
        "hangs": odd(at_load("import time\ntime.sleep(3600)"), "Hangs"),
        "prints": odd(at_load("print('to standard output')"), "Prints"),
        "reaches-out": odd(at_load("import socket\nsocket.getaddrinfo('example.org', 443)"), "Reaches out"),
        "peeps": odd(at_load("import os\nassert 'HEADRACE_REDIS__URL' not in os.environ"), "Peeps"),
        "empty": {"name": "Empty", "data": {"nodes": [], "edges": []}},
        "of-0-4": of_0_4(),
        "of-0-6": of_0_6(),
        "of-1-1": of_1_1(),
        "of-1-3-round": chained([("A-1", "B-1"), ("B-1", "A-1")]),
        "of-1-4-agent": old_agent().export(),
        "of-1-4-agent-upgraded": old_agent().export(),
        "needs-key": needs_key(),
        "parent": parent(),
        "last": flows.hello(name="Last").export(),
    }


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, FlowReport]:
    """The report on each."""
    folder = tmp_path_factory.mktemp("flows")
    sources = [
        FlowSource(
            name, "v", export, folder / f"{name}.json", folder / f"{name}.files", upgrade=name.endswith("upgraded")
        )
        for name, export in every_flow().items()
    ]
    environ = {**os.environ, "HEADRACE_REDIS__URL": f"redis://:{CANARY}@x/0", "OPENAI_API_KEY": CANARY}
    return {report.route: report for report in check_flows(sources, environ=environ, timeout=HANG * 4)}


def test_every_flow_gets_its_report_in_order(reports: Mapping[str, FlowReport]) -> None:
    assert list(reports) == list(every_flow())


@pytest.mark.parametrize(
    "route", ["good", "after-exit", "prints", "peeps", "last", "needs-key", "of-1-4-agent-upgraded"]
)
def test_ready(route: str, reports: Mapping[str, FlowReport]) -> None:
    report = reports[route]
    assert (report.verdict, report.error, report.needs) == (Verdict.READY, None, ())


@pytest.mark.parametrize(
    ("route", "says"),
    [
        ("exits", "ended the process: exit status 3"),
        ("hangs", "longer than 24 s"),
        ("empty", "no components"),
    ],
)
def test_invalid(route: str, says: str, reports: Mapping[str, FlowReport]) -> None:
    report = reports[route]
    assert report.verdict is Verdict.INVALID
    assert report.error is not None and says in report.error
    assert report.name


@pytest.mark.parametrize(
    ("route", "says"),
    [
        ("reaches-out", ["Custom-it"]),
        ("sys-exits", ["Custom-it", "SystemExit"]),
        ("parent", ["RunFlow-it", "'Nowhere'"]),
        ("of-0-4", ["0.x", "ChatOpenAI-1"]),
        ("of-0-6", ["0.x", "ChatInput-in"]),
        ("of-1-1", ["saved by Langflow 1.1.4", "ChatInput-in", "gone_since"]),
    ],
)
def test_unready_by_name(route: str, says: list[str], reports: Mapping[str, FlowReport]) -> None:
    report = reports[route]
    assert report.verdict is Verdict.UNREADY
    told = " ".join(need.message for need in report.needs)
    for words in says:
        assert words in told


def test_a_network_call_is_refused_and_told(reports: Mapping[str, FlowReport]) -> None:
    assert any("example.org" in warning for warning in reports["reaches-out"].warnings)


def test_a_cycle_is_told(reports: Mapping[str, FlowReport]) -> None:
    report = reports["of-1-3-round"]
    assert report.verdict is Verdict.READY and report.cyclic
    assert any("cycle" in warning for warning in report.warnings)


def test_an_old_agent_is_told_as_breaking(reports: Mapping[str, FlowReport]) -> None:
    report = reports["of-1-4-agent"]
    states = {component.id: component.state for component in report.components}
    assert states["Agent-old"] is ComponentState.OUTDATED_BREAKING
    assert report.saved_by == "1.4.2"
    assert any("Agent-old" in warning and "model" in warning for warning in report.warnings)


def test_reports_are_json_and_hold_no_secret(reports: Mapping[str, FlowReport]) -> None:
    for report in reports.values():
        text = report.model_dump_json()
        assert FlowReport.model_validate_json(text) == report
        assert CANARY not in text
        json.loads(text)


def test_one_flow_alone(tmp_path: Path) -> None:
    source = flows.source(needs_key(), path=tmp_path / "flow.json")
    report = check_flow(source, environ={"PATH": os.environ["PATH"]})
    assert report.verdict is Verdict.UNREADY
    assert [need.name for need in report.needs] == ["OPENAI_API_KEY"]
