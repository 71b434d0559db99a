"""An Agent asked for structured output answers with its model's error: a failure all the same, and of the same kind."""

from __future__ import annotations

import pytest

from runtime.errors import Fault, RouteFault, RunFailed
from tests.integration.engine.conftest import Runner
from tests.support import flows
from tests.support.provider import Say, Status


def structured(*tools: str) -> flows.Flow:
    """An agent whose structured output is the flow's."""
    schema = [{"name": "error", "description": "What went wrong.", "type": "str", "multiple": False}]
    flow = flows.agent(*tools, name=f"Structured {len(tools)}", output_schema=schema)
    flow.edges = [edge for edge in flow.edges if edge["source"] != "Agent-it"]
    flow.connect("Agent-it", "structured_response", "ChatOutput-out", "input_value")
    return flow


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [(500, RunFailed, "provider_failed"), (429, RunFailed, "rate_limited"), (401, RouteFault, "credential_refused")],
)
@pytest.mark.parametrize("tools", [(), ("CalculatorComponent",)], ids=["without tools", "with a tool"])
async def test_a_models_failure_is_the_runs(
    run: Runner, tools: tuple[str, ...], status: int, kind: type[Fault], code: str
) -> None:
    run.provider.default = Status(status)
    with pytest.raises(kind) as caught:
        await run(structured(*tools), "hi")
    assert (caught.value.info.code, caught.value.info.component_id) == (code, "Agent-it")
    assert caught.value.info.provider_status == status


async def test_an_answer_is_an_answer(run: Runner) -> None:
    run.provider.default = Say('{"error": "as the flow wants it"}')
    assert "as the flow wants it" in await run.text(structured("CalculatorComponent"), "hi")
