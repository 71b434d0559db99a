"""What is done to an export before it runs: shape, key fields, files, streaming, variables."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from runtime.engine.base import RunRequest
from runtime.engine.bindings import bind, secret_defaults, standard_bindings, variables_of
from runtime.engine.catalog import Catalog, Provider, ProviderVariable
from runtime.engine.environment import set_environment
from runtime.engine.export import read_export
from runtime.engine.files import place_stored_files
from runtime.engine.legacy import OldChat, old_chat_components
from runtime.engine.preflight import resolve_variables
from runtime.engine.shape import check_shape
from runtime.engine.streaming import set_streaming
from runtime.errors import FlowInvalid, FlowUnready

ACME = Provider("Acme", (ProviderVariable("ACME_URL", True, False), ProviderVariable("ACME_API_KEY", True, True)))
CATALOG = Catalog({"Acme": ACME})


def node(node_id: str, kind: str = "Custom", code: str = "class Custom: ...", **fields: Any) -> dict[str, Any]:
    template = {"_type": "Component", "code": {"type": "code", "value": code}, **fields}
    body = {"display_name": kind, "template": template, "outputs": [{"name": "out", "types": ["Message"]}]}
    return {"id": node_id, "type": "genericNode", "data": {"id": node_id, "type": kind, "node": body}}


def edge(source: str, target: str, field: str) -> dict[str, Any]:
    handles = {"sourceHandle": {"name": "out"}, "targetHandle": {"fieldName": field}}
    return {"source": source, "target": target, "data": handles}


def export(*nodes: dict[str, Any], edges: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"id": "x", "name": "X", "data": {"nodes": list(nodes), "edges": edges or []}}


def key(**more: Any) -> dict[str, Any]:
    return {"type": "str", "password": True, "show": True, "value": "", **more}


# --- shape ----------------------------------------------------------------------------------------------------------


def test_a_whole_flow_passes_and_groups_and_loops_too() -> None:
    group = {
        "id": "G",
        "data": {
            "type": "GroupNode",
            "node": {"flow": {"data": {"nodes": [node("A-1")], "edges": []}}, "template": {}},
        },
    }
    whole = export(
        group, node("B-1", text={"type": "str"}), edges=[edge("G", "B-1", "text"), edge("B-1", "B-1", "out")]
    )
    check_shape(whole, route="x")


@pytest.mark.parametrize("bad", [[], "text", {"data": []}, {"data": {"nodes": [{}], "edges": []}}])
def test_what_is_no_flow(bad: Any) -> None:
    with pytest.raises(FlowInvalid):
        check_shape(bad, route="x")


def test_two_components_of_one_id_are_refused() -> None:
    with pytest.raises(FlowInvalid, match="A-1"):
        check_shape(export(node("A-1"), node("A-1")), route="x")


def test_every_loose_edge_is_told() -> None:
    with pytest.raises(FlowUnready) as caught:
        check_shape(export(node("A-1"), edges=[edge("A-1", "A-1", "gone"), edge("A-1", "B-9", "x")]), route="x")
    assert len(caught.value.needs) == 2


# --- key fields -----------------------------------------------------------------------------------------------------

CODE = 'inputs = [SecretStrInput(name="token", value="MY_TOKEN"), SecretStrInput(name="other", value="literal")]'


def test_the_variables_that_a_source_names() -> None:
    assert secret_defaults(CODE) == {"token": "MY_TOKEN"}
    assert secret_defaults("not ( python") == {}


def test_empty_key_fields_get_their_standard_variable() -> None:
    flow = export(
        node("A-1", code=CODE, token=key(), other=key()),
        node("B-1", api_key=key(display_name="Acme API Key"), unknown=key(display_name="Nobody API Key")),
        node("C-1", api_key=key(display_name="Acme API Key", value="literal")),
        node("D-1", api_key=key(display_name="Acme API Key", show=False)),
        node("E-1", api_key=key(display_name="Acme API Key"), model={"type": "model", "value": []}),
    )
    data = flow["data"]
    found = standard_bindings(data, CATALOG)
    assert found == {("A-1", "token"): "MY_TOKEN", ("B-1", "api_key"): "ACME_API_KEY"}
    bind(data, {("A-1", "token"): "MY_TOKEN"})
    token = data["nodes"][0]["data"]["node"]["template"]["token"]
    assert (token["value"], token["load_from_db"]) == ("MY_TOKEN", True)
    assert data["nodes"][1]["data"]["node"]["template"]["api_key"]["value"] == ""


def test_the_variables_of_a_component() -> None:
    chosen = [{"name": "m", "provider": "Acme"}, {"name": "n"}, "odd"]
    flow = export(
        node("A-1", model={"type": "model", "value": chosen}, url={"type": "str", "load_from_db": True, "value": "URL"})
    )
    (component,) = read_export(flow, route="x").nodes
    assert variables_of(component, {("A-1", "k"): "BOUND"}, CATALOG) == {"ACME_URL", "ACME_API_KEY", "URL", "BOUND"}


def test_where_variables_come_from() -> None:
    request = RunRequest("e", {}, variables={"GIVEN": "given", "BLANK": " "})
    environ = {"NAMED": "named", "OTHER": "other", "GIVEN": "environment", "RESERVED": "no", "BLANK": "b", "EMPTY": ""}
    names = {"NAMED", "GIVEN", "RESERVED", "BLANK", "EMPTY", "UNSET"}
    found = resolve_variables(request, names, lambda name: name == "RESERVED", environ)
    assert found == {"NAMED": "named", "GIVEN": "given", "BLANK": "b"}


# --- files, streaming, old code, environment ------------------------------------------------------------------------


def test_stored_files_are_put_in_place(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    flow = export(
        node("A-1", path={"type": "file", "file_path": ["flow/a.txt", "flow/gone.txt"]}),
        node("B-1", path={"type": "file", "file_path": "C:\\x\\a.txt"}),
        node("C-1", path={"type": "file", "file_path": "../../etc/passwd"}),
        node("D-1", path={"type": "str", "file_path": "flow/a.txt"}),
    )
    place_stored_files(flow["data"], tmp_path)
    paths = [n["data"]["node"]["template"]["path"]["file_path"] for n in flow["data"]["nodes"]]
    assert paths == [[str(tmp_path / "a.txt")], str(tmp_path / "a.txt"), "", "flow/a.txt"]


@pytest.mark.parametrize("wanted", [True, False])
def test_only_what_feeds_chat_outputs_alone_streams(wanted: bool) -> None:
    stream = {"type": "bool", "value": not wanted}
    flow = export(
        node("L-1", stream=copy.deepcopy(stream)),
        node("L-2", stream=copy.deepcopy(stream)),
        node("L-3", stream=copy.deepcopy(stream)),
        node("O-1", "ChatOutput", input_value={}),
        node("P-1", "Parser", input_value={}),
        edges=[edge("L-1", "O-1", "input_value"), edge("L-2", "O-1", "input_value"), edge("L-2", "P-1", "input_value")],
    )
    set_streaming(flow["data"], wanted=wanted)
    values = [n["data"]["node"]["template"]["stream"]["value"] for n in flow["data"]["nodes"][:3]]
    assert values == [wanted, False, False]


def test_old_chat_code_is_known_by_its_calls() -> None:
    old = "class ChatInput:\n    def message_response(self):\n        self.{}(message)\n"
    flow = export(
        node("A-1", code=old.format("send_message")),
        node("B-1", code=old.format("store_message")),
        node("C-1", code=old.format("send_message").replace("    def", "    async def")),
        node("D-1", code=old.format("something")),
    )
    assert old_chat_components(read_export(flow, route="x")) == {"A-1": OldChat.SENDS, "B-1": OldChat.STORES}


def test_the_users_own_settings_of_the_engine_stand(tmp_path: Path) -> None:
    environ = {"DO_NOT_TRACK": "mine", "LANGFLOW_CONFIG_DIR": str(tmp_path)}
    set_environment(environ)
    assert environ["DO_NOT_TRACK"] == "mine"
    assert environ["LANGFLOW_CONFIG_DIR"] == str(tmp_path)
    assert environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    assert environ["LANGFLOW_FALLBACK_TO_ENV_VAR"] == "false"
