"""An Agent of 1.2 to 1.7 is brought to where the engine's safe upgrade can take over."""

from __future__ import annotations

from typing import Any

from runtime.engine.bridges import bridged, model_edges, repoint
from tests.unit.engine.exports import edge, field, node

INSTALLED = {
    "template": {"model": field("", type="model", required=True, input_types=["LanguageModel"])},
    "outputs": [{"name": "response"}, {"name": "structured_response"}],
}


def agent(**fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = node("Agent-1", outputs=[{"name": "response", "types": ["Message"]}], **fields)["data"][
        "node"
    ]
    return body


def test_provider_and_model_become_one_selection() -> None:
    old = agent(agent_llm=field("OpenAI"), model_name=field("gpt-4o-mini"))
    new = bridged("Agent", old, INSTALLED, connected=False)
    assert new["template"]["model"]["value"] == [{"name": "gpt-4o-mini", "provider": "OpenAI", "metadata": {}}]
    assert [output["name"] for output in new["outputs"]] == ["response", "structured_response"]
    assert "model" not in old["template"] and len(old["outputs"]) == 1


def test_a_connected_model_stays_connected() -> None:
    edges = [edge("Llm-1", "Agent-1", "agent_llm"), edge("Chat-1", "Agent-1", "input_value"), "junk"]
    (found,) = model_edges(edges, "Agent-1")
    new = bridged("Agent", agent(agent_llm=field("Custom")), INSTALLED, connected=True)
    repoint(found)
    assert new["template"]["model"]["value"] == "connect_other_models"
    assert found["data"]["targetHandle"]["fieldName"] == "model"


def test_others_and_incomplete_ones_are_left_alone() -> None:
    for kind, body in (
        ("Other", agent(agent_llm=field("OpenAI"), model_name=field("m"))),
        ("Agent", agent(agent_llm=field("Custom"))),
        ("Agent", agent(agent_llm=field("OpenAI"), model_name=field(""))),
        ("Agent", agent(model=field("x"))),
    ):
        assert bridged(kind, body, INSTALLED, connected=False) == body
