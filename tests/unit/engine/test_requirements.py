"""What a flow needs: found in its export alone, said so that a user can act on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.engine.export import read_export
from runtime.engine.needs import NeedKind, Stage
from runtime.engine.reach import is_cyclic, running
from runtime.engine.requirements import Requirements, analyse
from tests.unit.engine.exports import FakeCatalog, edge, export, field, model, node, secret, source


def look(flow: dict[str, Any], *, absent: frozenset[str] = frozenset(), **beside: Any) -> Requirements:
    siblings = {name: source(other, route=name) for name, other in beside.items()}
    return analyse(source(flow), siblings, FakeCatalog(absent=absent))


def messages(needs: Any) -> list[str]:
    return [need.message for need in needs]


def test_a_model_that_is_not_chosen_is_named_with_its_component_and_field() -> None:
    wanted = look(export(node("Agent-1", model=model())))
    (need,) = wanted.unmet(variables=())
    assert (need.kind, need.stage, need.component_id, need.field) == (NeedKind.MODEL, Stage.RUN, "Agent-1", "model")
    assert "Agent-1" in need.message and "choose" in need.message
    assert wanted.unmet(variables=(), tweaked={("Agent-1", "model")}) == ()


def test_a_connected_model_is_a_model() -> None:
    flow = export(node("Llm-1"), node("Agent-1", model=model()), edges=[edge("Llm-1", "Agent-1", "model")])
    assert look(flow).conditions == ()


def test_a_model_without_its_provider_must_be_chosen_again() -> None:
    (need,) = look(export(node("Agent-1", model=model("Unknown")))).unmet(variables=())
    assert need.kind is NeedKind.MODEL


def test_a_providers_key_comes_from_its_variable() -> None:
    wanted = look(export(node("Agent-1", model=model("OpenAI"), api_key=secret())))
    (need,) = wanted.unmet(variables={"OTHER"})
    assert (need.kind, need.name) == (NeedKind.VARIABLE, "OPENAI_API_KEY")
    assert wanted.unmet(variables={"OPENAI_API_KEY"}) == ()
    assert wanted.unmet(variables=(), tweaked={("Agent-1", "api_key")}) == ()
    assert wanted.variables == {"OPENAI_API_KEY"} and wanted.providers == {"OpenAI"}


@pytest.mark.parametrize("load_from_db", [True, False])
def test_a_providers_key_comes_from_the_variable_that_the_field_is_bound_to(load_from_db: bool) -> None:
    key = secret("MY_KEY") | {"load_from_db": load_from_db}
    wanted = look(export(node("Agent-1", model=model("OpenAI"), api_key=key)))
    assert wanted.unmet(variables={"MY_KEY"}) == () == wanted.unmet(variables={"OPENAI_API_KEY"})
    assert wanted.variables == {"MY_KEY", "OPENAI_API_KEY"}


def test_a_provider_stands_in_for_its_own_key_field_only() -> None:
    store = node("Astra-1", embedding_model=model("OpenAI"), api_key=secret(), token=secret(required=True))
    assert [need.field for need in look(export(store)).unmet(variables={"OPENAI_API_KEY"})] == ["token"]


def test_a_literal_key_runs_and_is_remarked_without_being_shown() -> None:
    key = secret("sk-very-secret-1") | {"load_from_db": False}
    wanted = look(export(node("Agent-1", model=model("OpenAI"), api_key=key)))
    assert wanted.conditions == ()
    assert len(wanted.remarks) == 1 and "secret" in wanted.remarks[0] and "sk-very" not in repr(wanted)


def test_a_keyless_provider_needs_its_address_only() -> None:
    wanted = look(export(node("Agent-1", model=model("Local"), api_key=secret())))
    assert [need.name for need in wanted.unmet(variables=())] == ["LOCAL_URL"]


def test_an_unknown_provider_and_a_missing_sdk_are_missed_at_load() -> None:
    (need,) = look(export(node("Agent-1", model=model("Made Up")))).missing
    assert need.kind is NeedKind.PROVIDER and "Made Up" in need.message
    (need,) = look(export(node("Agent-1", model=model("OpenAI"))), absent=frozenset({"langchain_openai"})).missing
    assert need.message.startswith("pip install langchain-openai")


def test_a_bound_field_needs_its_variable() -> None:
    wanted = look(export(node("Api-1", url=field("MY_URL", load_from_db=True))))
    (need,) = wanted.unmet(variables=())
    assert need.name == "MY_URL" and "Api-1" in need.message and "url" in need.message
    assert wanted.unmet(variables={"MY_URL"}) == () == wanted.unmet(variables=(), tweaked={("Api-1", "url")})


def test_a_variable_that_the_component_binds_itself_and_does_without_may_be_unset() -> None:
    code = "class Thing:\n    inputs = [SecretStrInput(name='token', value='AWS_SESSION_TOKEN')]\n"
    optional = node("Aws-1", code=code, token=secret("AWS_SESSION_TOKEN"))
    assert look(export(optional)).conditions == ()
    required = node("Aws-1", code=code, token=secret("AWS_SESSION_TOKEN", required=True))
    assert len(look(export(required)).conditions) == 1


def test_a_secret_typed_into_a_variable_field_is_not_shown() -> None:
    wanted = look(export(node("Api-1", key=secret("sk-abc/DEF+123=="))))
    (need,) = wanted.unmet(variables=())
    assert "sk-abc" not in repr(wanted) and "variable" in need.message


@pytest.mark.parametrize("keys", [{"show": False}, {"required": False}])
def test_hidden_and_optional_fields_may_be_empty(keys: dict[str, Any]) -> None:
    assert look(export(node("Api-1", key=field(**{"required": True, **keys})))).conditions == ()


def test_a_required_field_must_be_filled_connected_or_tweaked() -> None:
    wanted = look(export(node("Api-1", url=field(required=True))))
    (need,) = wanted.unmet(variables=())
    assert (need.kind, need.field) == (NeedKind.FIELD, "url")
    assert wanted.unmet(variables=(), tweaked={("Api-1", "url")}) == ()
    fed = export(node("A-1"), node("Api-1", url=field(required=True)), edges=[edge("A-1", "Api-1", "url")])
    assert look(fed).conditions == ()
    assert look(export(node("ChatInput-1", input_value=field(required=True)))).conditions == ()


def test_a_tools_empty_field_is_remarked_unless_the_agent_fills_it() -> None:
    tool = node("Sql-1", tool=True, url=field(required=True), query=field(required=True, tool_mode=True))
    wanted = look(export(tool, node("Agent-1", tools=field()), edges=[edge("Sql-1", "Agent-1", "tools")]))
    assert wanted.conditions == () and len(wanted.remarks) == 1 and "'url'" in wanted.remarks[0]


def test_packages_that_a_component_imports_with_itself_are_missed_at_load() -> None:
    code = (
        "import json\nimport astrapy.db\nfrom lfx.custom import Component\n"
        "try:\n    import fast\nexcept ImportError:\n    fast = None\n"
        "class Thing(Component):\n    def build(self):\n        import later\n"
    )
    wanted = look(export(node("Db-1", code=code)), absent=frozenset({"astrapy", "fast", "later"}))
    assert messages(wanted.missing) == [
        "pip install astrapy: component 'Db' (Db-1) imports 'astrapy.db', which is not installed"
    ]
    assert len(wanted.remarks) == 1 and "pip install fast later" in wanted.remarks[0]


def test_a_package_is_missed_in_a_component_that_never_runs() -> None:
    code = "import absent\n"
    flow = export(node("ChatInput-1"), node("Idle-1", code=code, url=field(required=True)))
    wanted = look(flow, absent=frozenset({"absent"}))
    assert len(wanted.missing) == 1 and wanted.conditions == ()


def test_a_stored_file_must_lie_beside_the_flow(tmp_path: Path) -> None:
    stored = field([], type="file", file_path=["0f0f/report.pdf"])
    flow = export(node("File-1", path=stored))
    (need,) = analyse(source(flow, tmp_path), {}, FakeCatalog()).missing
    assert need.name == "report.pdf" and str(tmp_path / "flow.files") in need.message
    (tmp_path / "flow.files").mkdir()
    (tmp_path / "flow.files" / "report.pdf").touch()
    assert analyse(source(flow, tmp_path), {}, FakeCatalog()).missing == ()


def test_a_file_component_without_a_file_wants_one_of_each_event() -> None:
    wanted = look(export(node("File-1", path=field("", type="file"))))
    assert wanted.missing == () == wanted.conditions
    (need,) = wanted.fileless()
    assert need.stage is Stage.EVENT and "File-1" in need.message
    assert wanted.fileless(tweaked={("File-1", "path")}) == ()


@pytest.mark.parametrize(
    ("values", "child"),
    [
        ({"flow_id_selected": "id-1", "flow_name_selected": "renamed since"}, {"id": "id-1", "name": "Child"}),
        ({"flow_id_selected": "id-of-another-server", "flow_name_selected": "Child"}, {"id": "id-2", "name": "Child"}),
    ],
)
def test_a_child_flow_is_found_by_id_then_by_name(values: dict[str, str], child: dict[str, str]) -> None:
    parent = export(node("RunFlow-1", **{name: field(value) for name, value in values.items()}))
    assert look(parent, child=export(**child)).missing == ()
    (need,) = look(parent, other=export(name="Other")).missing
    assert need.kind is NeedKind.SUBFLOW and values["flow_name_selected"] in need.message


def test_what_needs_langflows_database_is_missed_but_as_a_tool_only_remarked() -> None:
    (need,) = look(export(node("Knowledge-1"))).missing
    assert need.kind is NeedKind.COMPONENT and "database" in need.message
    tool = export(node("MemoryBase-1", tool=True), node("Agent-1"), edges=[edge("MemoryBase-1", "Agent-1", "tools")])
    wanted = look(tool)
    assert wanted.missing == () and len(wanted.remarks) == 1


def test_only_what_the_input_is_connected_to_runs() -> None:
    flow = export(
        node("Ingest-1"),
        node("Store-1"),
        node("Tool-1", tool=True),
        node("ChatInput-1"),
        node("Side-1"),
        node("Agent-1"),
        edges=[edge("Ingest-1", "Store-1", "a"), edge("ChatInput-1", "Agent-1", "a"), edge("Side-1", "Agent-1", "b")],
    )
    assert running(read_export(flow, route="r")) == {"ChatInput-1", "Side-1", "Agent-1"}


def test_without_a_chat_or_webhook_everything_runs() -> None:
    assert running(read_export(export(node("A-1"), node("TextInput-1")), route="r")) == {"A-1", "TextInput-1"}


def test_a_loops_own_circle_is_told_from_others() -> None:
    looped = export(
        node("Loop-1", outputs=[{"name": "item"}]),
        node("Llm-1"),
        edges=[edge("Loop-1", "Llm-1", "input"), edge("Llm-1", "Loop-1", "item")],
    )
    view = read_export(looped, route="r")
    assert is_cyclic(view) and not is_cyclic(view, loops=False)
    turned = export(
        node("A-1", a=field()), node("B-1", b=field()), edges=[edge("A-1", "B-1", "b"), edge("B-1", "A-1", "a")]
    )
    assert is_cyclic(read_export(turned, route="r"), loops=False)
