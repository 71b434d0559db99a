"""``upgrade: safe``: the installed source in place of the saved one, in memory, where that is safe."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from runtime.engine import catalog
from runtime.engine.upgrade import ComponentState, apply_safe_upgrades, component_verdicts
from runtime.errors import Fault
from tests.integration.engine.conftest import Runner
from tests.support import flows

OLD_AGENT = """
from langflow.base.agents.agent import LCToolsAgentComponent
from langflow.components.langchain_utilities.tool_calling import ToolCallingAgentComponent
from langflow.io import DropdownInput, MultilineInput, Output, SecretStrInput, StrInput
from langflow.schema.message import Message


class AgentComponent(ToolCallingAgentComponent):
    display_name = "Agent"
    name = "Agent"
    inputs = [
        DropdownInput(name="agent_llm", display_name="Model Provider", options=["OpenAI", "Custom"], value="OpenAI"),
        StrInput(name="model_name", display_name="Model Name"),
        SecretStrInput(name="api_key", display_name="API Key"),
        MultilineInput(name="system_prompt", display_name="Agent Instructions"),
        *LCToolsAgentComponent._base_inputs,
    ]
    outputs = [Output(name="response", display_name="Response", method="message_response")]

    async def message_response(self) -> Message:
        return await self.run_agent(self.create_agent_runnable())
"""
"""The shape of the Agent that 1.2 to 1.7 saved: its model in two drop-downs, one output."""

KEPT = ("_type", "code", "input_value", "system_prompt", "tools", "handle_parsing_errors", "max_iterations", "api_key")


def old_agent(*, connected: bool = False) -> flows.Flow:
    """ChatInput, an Agent as 1.4 saved it, ChatOutput; ``connected`` gives it its model by an edge."""
    flow = flows.Flow("Old agent", version="1.4.2")
    node = copy.deepcopy(flows.component_index()["Agent"])
    template = {name: field for name, field in node["template"].items() if name in KEPT}
    template["code"]["value"] = OLD_AGENT
    text = {"type": "str", "show": True, "required": False, "advanced": False, "input_types": []}
    template["agent_llm"] = {**text, "name": "agent_llm", "value": "Custom" if connected else "OpenAI"}
    template["agent_llm"]["input_types"] = ["LanguageModel"]
    template["model_name"] = {**text, "name": "model_name", "value": "gpt-4o-mini"}
    template["api_key"].update(value="OPENAI_API_KEY", load_from_db=True)
    node["template"] = template
    node["outputs"] = [output for output in node["outputs"] if output["name"] == "response"]
    chat_in = flow.add("ChatInput", "ChatInput-in")
    agent = flow.put("Agent", node, "Agent-old", system_prompt="Be brief.")
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(chat_in, "message", agent, "input_value")
    flow.connect(agent, "response", out, "input_value")
    if connected:
        model = [{"name": "gpt-4o-mini", "provider": "OpenAI", "metadata": {}}]
        llm = flow.add("LanguageModelComponent", "LanguageModelComponent-it", model=model)
        flow.connect(llm, "model_output", agent, "agent_llm")
    return flow


def states(export: dict[str, Any]) -> dict[str, ComponentState]:
    """Each component's state."""
    return {verdict.id: verdict.state for verdict in component_verdicts(export, catalog.installed())}


def keys(run: Runner) -> dict[str, str]:
    """What OpenAI's models read."""
    return {"OPENAI_API_KEY": "stub-key", "OPENAI_BASE_URL": run.provider.url}


async def test_a16_an_agent_of_1_4_fails_as_it_was_saved(run: Runner) -> None:
    with pytest.raises(Fault, match="Agent-old"):
        await run(old_agent(), "hi", variables=keys(run))


@pytest.mark.parametrize("connected", [False, True], ids=["chosen", "connected"])
async def test_a16_an_agent_of_1_4_runs_upgraded(run: Runner, connected: bool) -> None:
    export = old_agent(connected=connected).export()
    before = json.dumps(export)
    assert await run.text(flows.source(export, upgrade=True), "hi", variables=keys(run)) == "echo: hi"
    (call,) = run.provider.chats
    assert call.body["model"] == "gpt-4o-mini" and call.key == "stub-key"
    assert call.texts("system")[0].startswith("Be brief.")
    assert json.dumps(export) == before


async def test_what_is_safe_is_upgraded_and_what_is_not_stays(run: Runner) -> None:
    flow = flows.hello(name="Aged")
    flow.template("ChatInput-in")["code"]["value"] += "\n# as an older version had it\n"
    del flow.template("ChatInput-in")["context_id"]
    flow.template("ChatOutput-out")["code"]["value"] += "\n# as an older version had it\n"
    flow.node("ChatOutput-out")["node"]["outputs"][0]["method"] = "gone"
    export = flow.export()
    assert states(export) == {
        "ChatInput-in": ComponentState.OUTDATED_SAFE,
        "ChatOutput-out": ComponentState.OUTDATED_BREAKING,
    }
    upgraded = apply_safe_upgrades(export)
    assert states(upgraded) == {
        "ChatInput-in": ComponentState.OK,
        "ChatOutput-out": ComponentState.OUTDATED_BREAKING,
    }
    fields = upgraded["data"]["nodes"][0]["data"]["node"]["template"]
    assert fields["code"] == flows.component_index()["ChatInput"]["template"]["code"]
    assert fields["context_id"] == flows.component_index()["ChatInput"]["template"]["context_id"]
    assert {**upgraded, "data": None} == {**export, "data": None}


async def test_components_of_others_are_fine_as_they_are(run: Runner) -> None:
    export = flows.through("def work(self) -> Message:\n    return Message(text='')").export()
    assert states(export)["Custom-it"] is ComponentState.OK
    assert apply_safe_upgrades(export) == export


async def test_a_verdict_names_the_package(run: Runner) -> None:
    flow = flows.through("def work(self) -> Message:\n    return Message(text='')")
    code = flow.template("Custom-it")["code"]
    code["value"] = "import no_such_package\n" + code["value"]
    (verdict,) = (v for v in component_verdicts(flow.export(), catalog.installed()) if v.id == "Custom-it")
    assert (verdict.state, verdict.note) == (ComponentState.MISSING_PACKAGE, "pip install no-such-package")
    assert verdict.saved_by == "1.13.0"
