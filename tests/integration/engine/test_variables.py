"""Variables and keys: where they come from, who sees them, and what is said when one is missing."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from runtime.errors import EventFault, RouteFault
from tests.integration.engine.conftest import Runner
from tests.support import flows
from tests.support.flows import Field

SHOW = "def work(self) -> Message:\n    return Message(text=repr(self.secret))"
SECRET = 'SecretStrInput(name="secret", display_name="Secret")'
PLAIN = 'MessageTextInput(name="secret", display_name="Secret", load_from_db=True)'
IMPORTS = "from lfx.io import SecretStrInput"


def bound(variable: str = "MY_VAR", *, required: bool = False) -> flows.Flow:
    """A flow that says the value of a plain field that is bound to a variable."""
    binding = Field(value=variable, load_from_db=True, required=required)
    return flows.through(SHOW, inputs=PLAIN, values={"secret": binding})


async def test_a2_a_bound_variable_only_in_the_environment_is_used(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_VAR", "from the environment")
    assert await run.text(bound(), "x") == "'from the environment'"


async def test_a2_an_unset_variable_is_named_with_its_component(run: Runner) -> None:
    with pytest.raises(RouteFault, match=r"MY_VAR.*'Custom' \(Custom-it\)") as caught:
        await run(bound(), "x")
    assert caught.value.info.code == "credential_missing"
    assert caught.value.info.component_id == "Custom-it"


async def test_a2_a_blank_variable_is_an_unset_one(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_VAR", "  ")
    with pytest.raises(RouteFault):
        await run(bound(), "x")


async def test_a3_an_event_without_a_tenant_or_a_session_runs(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_VAR", "v")
    assert await run.text(bound(), "x", tenant_id=None, session_id=None) == "'v'"


async def test_a6_a_rotated_variable_is_used_by_the_next_run(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("first", "second"):
        monkeypatch.setenv("MY_VAR", value)
        for _ in range(2):
            assert await run.text(bound(), "x") == f"'{value}'"


async def test_the_event_wins_over_the_environment(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_VAR", "environment")
    given = {"variables": {"MY_VAR": "event"}, "brought": frozenset({"MY_VAR"})}
    assert await run.text(bound(), "x", **given) == "'event'"
    assert await run.text(bound(), "x") == "'environment'"


async def test_a_variable_that_events_are_to_bring_is_missed_in_the_event(run: Runner) -> None:
    source = flows.source(bound(), version="expects", variables=frozenset({"MY_VAR"}))
    with pytest.raises(EventFault, match="MY_VAR"):
        await run(source, "x")


@pytest.mark.parametrize("name", ["LANGFLOW_SECRET_KEY", "DATABASE_URL", "REDIS_URL"])
async def test_reserved_names_are_never_read_from_the_environment(
    run: Runner, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "the worker's own")
    with pytest.raises(RouteFault, match=name):
        await run(bound(name), "x")


async def test_a_variable_that_the_flow_does_not_name_is_not_visible(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOMEBODY_ELSES_KEY", "hidden")
    body = """
        async def work(self) -> Message:
            found = []
            for name in ("SOMEBODY_ELSES_KEY", "OPENAI_API_KEY"):
                try:
                    found.append(await self.get_variables(name, "secret"))
                except Exception as error:
                    found.append(type(error).__name__)
            return Message(text=repr(found))
    """
    assert "hidden" not in await run.text(flows.through(body), "x")


TABLE = """
TableInput(name="headers", display_name="Headers", table_schema=[
    {"name": "key", "type": "str"}, {"name": "value", "type": "str", "load_from_db": True}])
"""


def tabled(*rows: dict[str, object]) -> flows.Flow:
    body = "def work(self) -> Message:\n    return Message(text=repr([(r['key'], r['value']) for r in self.headers]))"
    imports = "from lfx.io import TableInput"
    return flows.through(body, inputs=TABLE, imports=imports, values={"headers": list(rows)}, name=f"Tabled{len(rows)}")


async def test_a2_a_table_cell_that_is_bound_to_a_variable_gets_its_value(run: Runner) -> None:
    says = "__load_from_db_fields"
    flow = tabled(
        {"key": "a", "value": "MY_VAR", says: {"value": True}},
        {"key": "b", "value": "MY_VAR", says: {"value": False}},
        {"key": "c", "value": "MY_VAR"},
        {"key": "d", "value": "plain text"},
    )
    told = await run.text(flow, "x", variables={"MY_VAR": "given"})
    assert told == "[('a', 'given'), ('b', 'MY_VAR'), ('c', 'given'), ('d', 'plain text')]"
    with pytest.raises(RouteFault, match=r"MY_VAR.*Custom-it|Tabled") as caught:
        await run(flow, "x")
    assert caught.value.info.code == "credential_missing"


OLD_MODEL = """
from lfx.custom.custom_component.component import Component
from lfx.io import MessageTextInput, Output, SecretStrInput
from lfx.schema.message import Message


class OldModel(Component):
    display_name = "Old model"
    inputs = [
        MessageTextInput(name="text", display_name="Text"),
        SecretStrInput(name="api_key", display_name="OpenAI API Key", value="OPENAI_API_KEY"),
    ]
    outputs = [Output(name="out", display_name="Out", method="work")]

    def work(self) -> Message:
        if not self.api_key:
            raise ValueError("OpenAI API key is required")
        return Message(text="key ends with " + str(self.api_key)[-4:])
"""


def keyless() -> flows.Flow:
    """A flow as it is exported without its keys: the key field is empty and bound to nothing."""
    flow = flows.Flow("Keyless")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    model = flow.custom(OLD_MODEL, "OldModel-it", api_key=Field(value="", load_from_db=False))
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(chat_in, "message", model, "text")
    flow.connect(model, "out", out, "input_value")
    return flow


async def test_a4_an_empty_key_field_gets_its_standard_variable(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-9876")
    assert await run.text(keyless(), "x") == "key ends with 9876"


async def test_a4_without_it_the_fault_names_the_component(run: Runner) -> None:
    with pytest.raises(RouteFault, match="OldModel-it") as caught:
        await run(keyless(), "x")
    assert caught.value.info.code == "credential_missing"


async def test_a_model_needs_its_providers_variable(run: Runner) -> None:
    with pytest.raises(RouteFault, match=r"OPENAI_COMPATIBLE_BASE_URL.*LanguageModelComponent-llm") as caught:
        await run(flows.llm(), "x", model=False)
    assert caught.value.info.code == "credential_missing"
    assert not run.provider.requests


async def test_a_key_in_the_environment_reaches_the_provider(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("sk-first", "sk-second"):
        monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", key)
        await run(flows.llm(), "x")
    assert [seen.key for seen in run.provider.chats] == ["sk-first", "sk-second"]


async def test_a_flow_without_a_model_selected_says_so(run: Runner) -> None:
    with pytest.raises(RouteFault, match=r"choose a model.*LanguageModelComponent-llm") as caught:
        await run(unselected(), "x")
    assert caught.value.info.code == "model_missing"


def unselected() -> flows.Flow:
    flow = flows.llm()
    flow.name = "No model"
    flow.template("LanguageModelComponent-llm")["model"]["value"] = []
    return flow


async def test_a10_every_unset_field_is_named_before_any_call(run: Runner) -> None:
    flow = flows.llm()
    flow.name = "Unset fields"
    body = "def work(self) -> Message:\n    return Message(text='never')"
    for place in (1, 2):
        inputs = f'SecretStrInput(name="token{place}", display_name="Token {place}", required=True)'
        made = flow.custom(
            flows.component(body, name=f"Needs{place}", inputs=inputs, imports=IMPORTS), f"Needs{place}-it"
        )
        out = flow.add("ChatOutput", f"ChatOutput-{place}")
        flow.connect("LanguageModelComponent-llm", "text_output", made, "text")
        flow.connect(made, "out", out, "input_value")
    with pytest.raises(RouteFault) as caught:
        await run(flow, "x")
    message = caught.value.info.message
    for place in (1, 2):
        assert f"Needs{place}-it" in message
        assert f"token{place}" in message
    assert not run.provider.requests


async def test_an_empty_required_secret_never_gives_an_empty_answer(run: Runner) -> None:
    inputs = 'SecretStrInput(name="secret", display_name="Secret", required=True)'
    with pytest.raises(RouteFault) as caught:
        await run(flows.through(SHOW, inputs=inputs, imports=IMPORTS), "x")
    assert caught.value.info.code == "field_missing"


CANARY = "canary-5f2c9e"


async def test_secrets_are_masked_in_errors_and_events(run: Runner, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
        def work(self) -> Message:
            raise RuntimeError(f"the key {self.secret} was refused by {self.text}")
    """
    flow = flows.through(body, inputs=PLAIN, values={"secret": Field(value="MY_VAR", load_from_db=True)})
    with pytest.raises(Exception) as caught:
        await run(flow, "x", variables={"MY_VAR": CANARY})
    info = caught.value.info
    assert "the key ******** was refused" in info.message
    written = capfd.readouterr()
    told = json.dumps(info.model_dump()) + str(run.told.events) + str(caught.value) + written.out + written.err
    assert CANARY not in told


async def test_a_literal_secret_in_the_file_is_masked_too(run: Runner) -> None:
    body = "def work(self) -> Message:\n    raise RuntimeError(f'no {self.secret.get_secret_value()}')"
    values = {"secret": Field(value=CANARY, load_from_db=False)}
    with pytest.raises(Exception) as caught:
        await run(flows.through(body, inputs=SECRET, imports=IMPORTS, values=values), "x")
    assert CANARY not in json.dumps(caught.value.info.model_dump())


TOKEN = """
def work(self) -> Message:
    import os, time
    before = os.environ.get("RUN_TOKEN", "nothing")
    os.environ["RUN_TOKEN"] = self.text
    os.environ.pop("PRESENT", None)
    after = os.environ["RUN_TOKEN"]
    seen = "RUN_TOKEN" in dict(os.environ) and "RUN_TOKEN" in list(os.environ) and "PRESENT" not in os.environ.copy()
    time.sleep(0.05)
    return Message(text=f"{before}/{after}/{os.environ.get('RUN_TOKEN')}/{seen}")
"""


async def test_b6_what_a_component_sets_in_the_environment_is_gone_for_the_next_run(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRESENT", "kept")
    for text in ("one", "two"):
        assert await run.text(flows.through(TOKEN), text) == f"nothing/{text}/{text}/True"
    assert "RUN_TOKEN" not in os.environ
    assert os.environ["PRESENT"] == "kept"


async def test_b6_in_parallel_too(run: Runner) -> None:
    texts = [f"t{n}" for n in range(8)]
    said = await asyncio.gather(*(run.text(flows.through(TOKEN), text) for text in texts))
    assert list(said) == [f"nothing/{text}/{text}/True" for text in texts]


async def test_b6_what_goes_around_os_environ_is_undone(run: Runner) -> None:
    body = """
        def work(self) -> Message:
            import os, threading
            thread = threading.Thread(target=lambda: os.environ.__setitem__("LEAKED", "yes"))
            thread.start(); thread.join()
            return Message(text="done")
    """
    assert await run.text(flows.through(body), "x") == "done"
    assert "LEAKED" not in os.environ
