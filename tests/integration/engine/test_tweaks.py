"""Fields that an event sets, as far as the route allows it."""

from __future__ import annotations

import pytest

from runtime.errors import EventFault
from tests.integration.engine.conftest import Runner
from tests.support import flows
from tests.support.flows import Field

BODY = "def work(self) -> Message:\n    return Message(text=f'{self.text}:{self.word}')"


def wordy() -> flows.Flow:
    inputs = 'MessageTextInput(name="word", display_name="Word")'
    return flows.through(BODY, inputs=inputs, values={"word": "saved"})


def given(**tweaks: object) -> dict[str, object]:
    return {"input_value": "x", "tweaks": tweaks}


@pytest.mark.parametrize("key", ["Custom-it", "Custom"])
async def test_a_field_is_set_by_the_components_id_or_name(run: Runner, key: str) -> None:
    payload = given(**{key: {"word": "tweaked"}})
    assert await run.text(wordy(), payload=payload, tweaks_allowed=True) == "x:tweaked"
    assert await run.text(wordy(), "x") == "x:saved"


async def test_a_field_of_every_component_is_set_by_its_name(run: Runner) -> None:
    assert await run.text(wordy(), payload=given(word="all"), tweaks_allowed=True) == "x:all"


async def test_the_form_of_the_ui_is_understood(run: Runner) -> None:
    payload = given(**{"Custom-it": {"word": {"value": "wrapped"}}})
    assert await run.text(wordy(), payload=payload, tweaks_allowed=True) == "x:wrapped"


REFUSED = [
    ({"Custom-it": {"word": "t"}}, False, "tweak_refused", "allows no tweaks"),
    ({"Custom-it": {"wrod": "t"}}, True, "tweak_unknown", "did you mean 'word'"),
    ({"Custm-it": {"word": "t"}}, True, "tweak_unknown", "did you mean 'Custom-it'"),
    ({"Custom-it": {"code": "print()"}}, True, "tweak_refused", "protected"),
    ({"Custom-it": {"code": "print()"}}, ("Custom-it.code",), "tweak_refused", "protected"),
    ({"Custom-it": {"text": "t"}}, True, "tweak_refused", "gets its value from another component"),
    ({"Custom-it": {"word": "t"}}, ("Custom-it.other",), "tweak_refused", "Custom-it.other"),
    ({"Custom-it": {"word": "t"}}, (), "tweak_refused", "declares"),
    ({"Custom-it": {"word": {"value": "MY_VAR", "load_from_db": True}}}, True, "tweak_refused", "load_from_db"),
    ({"Custom-it": "t"}, True, "payload_invalid", "expected an object"),
]


@pytest.mark.parametrize(("tweaks", "allowed", "code", "says"), REFUSED)
async def test_what_is_refused_is_the_events_fault(
    run: Runner, tweaks: dict[str, object], allowed: bool | tuple[str, ...], code: str, says: str
) -> None:
    with pytest.raises(EventFault, match=says) as caught:
        await run(wordy(), payload=given(**tweaks), tweaks_allowed=allowed)
    assert caught.value.info.code == code


async def test_a_listed_field_may_be_set(run: Runner) -> None:
    for listed in ("Custom-it.word", "Custom.word"):
        payload = given(**{"Custom-it": {"word": "tweaked"}})
        assert await run.text(wordy(), payload=payload, tweaks_allowed=(listed,)) == "x:tweaked"


async def test_a_field_that_the_flow_declares_may_be_set(run: Runner) -> None:
    inputs = 'MessageTextInput(name="word", display_name="Word")'
    flow = flows.through(BODY, inputs=inputs, values={"word": Field(value="saved", api_editable=True)})
    payload = given(**{"Custom-it": {"word": "tweaked"}})
    assert await run.text(flow, payload=payload, tweaks_allowed=()) == "x:tweaked"


async def test_a_tweak_meets_what_the_flow_lacks(run: Runner) -> None:
    flow = flows.llm()
    flow.name = "Model by tweak"
    flow.template("LanguageModelComponent-llm")["model"]["value"] = []
    payload = given(**{"LanguageModelComponent-llm": {"model": flows.STUB_MODEL}})
    assert await run.text(flow, payload=payload, tweaks_allowed=True) == "echo: x"
