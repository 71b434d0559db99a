"""The example flows: untouched exports that register without a problem and do what their README says."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from runtime.engine.base import LoadedFlow, RunRequest
from runtime.engine.langflow import LangflowEngine
from runtime.errors import RouteFault
from runtime.expressions import Scope
from runtime.registry.registry import Registry
from runtime.worker.route_book import flow_source
from shared_models.result import RunResult
from shared_models.route import RouteSpec
from tests.support import provider as stub
from tests.support.history import Sessions

yaml = pytest.importorskip("yaml")

FLOWS = Path(__file__).parents[2] / "flows"
DEADLINE = 60.0
NAMES = ["chat", "code-gen", "db", "hello", "router"]

stub_server, provider = stub.stub_server, stub.provider
on_one_loop = pytest.mark.asyncio(loop_scope="session")
pytestmark = pytest.mark.filterwarnings("ignore")  # what the engine's packages warn of is not ours to mend


def export(name: str) -> dict[str, Any]:
    return json.loads((FLOWS / f"{name}.json").read_bytes())


def spec(name: str) -> RouteSpec:
    path = FLOWS / f"{name}.yaml"
    return RouteSpec.model_validate(yaml.safe_load(path.read_text()) if path.exists() else {})


class Examples:
    """The loaded examples on one engine."""

    def __init__(self, engine: LangflowEngine, flows: dict[str, LoadedFlow]) -> None:
        self._engine = engine
        self._flows = flows
        self.history = Sessions()

    async def run(self, name: str, text: str, *, session: str | None = None, **variables: str) -> RunResult:
        request = RunRequest(event_id="e", payload={"input_value": text}, session_id=session, variables=variables)
        async with asyncio.timeout(DEADLINE):
            output = await self._engine.run(self._flows[name], request, self.history, lambda kind, data: None)
        self.history.commit(output.chat)
        return output.result


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def examples() -> AsyncIterator[Examples]:
    engine = LangflowEngine()
    await engine.prepare(concurrency=10)
    flows = {}
    for name, route in Registry(FLOWS).rescan().routes.items():
        flows[name] = await engine.load(flow_source(route))
    yield Examples(engine, flows)
    await engine.close()


# --- the files ------------------------------------------------------------------------------------------------------


def test_the_examples_register_without_a_problem():
    snapshot = Registry(FLOWS).rescan()
    assert snapshot.problems == ()
    assert {name: (route.stream, route.results) for name, route in snapshot.routes.items()} == {
        "chat": ("flows:chat", "flows:chat:results"),
        "code-gen": ("agent_jobs:code_gen", "agent_jobs:code_gen:results"),
        "db": ("agent_jobs:db", "agent_jobs:db:results"),
        "hello": ("flows:hello", "flows:hello:results"),
        "router": ("agent_jobs:ingress", "agent_jobs:ingress:results"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_what_the_download_endpoint_wrote(name):
    raw = (FLOWS / f"{name}.json").read_text(encoding="utf-8")
    flow = json.loads(raw)
    assert raw == json.dumps(flow, separators=(",", ":"), ensure_ascii=False), "the server writes compact JSON"
    assert {"id", "name", "description", "data", "is_component", "endpoint_name", "version_token"} <= flow.keys()
    assert flow["name"] == name
    assert not {"user_id", "folder_id", "updated_at"} & flow.keys(), "the download leaves these out"
    assert flow["data"]["viewport"]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_opens_in_the_editor(name):
    data = export(name)["data"]
    nodes = {node["id"]: node for node in data["nodes"]}
    assert len(nodes) == len(data["nodes"])
    corners = [(n["position"]["x"], n["position"]["y"]) for n in nodes.values()]
    size = [(n["measured"]["width"], n["measured"]["height"]) for n in nodes.values()]
    for i, (a, (w, h)) in enumerate(zip(corners, size, strict=True)):
        for b, (v, g) in list(zip(corners, size, strict=True))[i + 1 :]:
            apart = a[0] + w <= b[0] or b[0] + v <= a[0] or a[1] + h <= b[1] or b[1] + g <= a[1]
            assert apart, f"components lie over each other at {a} and {b}"
    for edge in data["edges"]:
        out, into = (json.loads(edge[side].replace("œ", '"')) for side in ("sourceHandle", "targetHandle"))
        outputs = {o["name"]: o for o in nodes[edge["source"]]["data"]["node"]["outputs"]}
        assert set(out["output_types"]) <= set(outputs[out["name"]]["types"])
        field = nodes[edge["target"]]["data"]["node"]["template"][into["fieldName"]]
        assert set(out["output_types"]) & set(field["input_types"]), f"{edge['id']} connects what does not fit"
        assert into["inputTypes"] == field["input_types"] and into["type"] == field["type"]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_holds_no_secret_and_nothing_of_the_machine_it_was_made_on(name):
    raw = (FLOWS / f"{name}.json").read_text(encoding="utf-8")
    assert not re.search(r"sk-[A-Za-z0-9]{8}|not-a-key|/root|/home/|/tmp/", raw)
    for node in export(name)["data"]["nodes"]:
        for field in node["data"]["node"]["template"].values():
            if isinstance(field, dict) and field.get("password"):
                assert not field["value"] or field["load_from_db"], "a literal secret"


# --- what they do ---------------------------------------------------------------------------------------------------


def published(name: str, result: RunResult) -> list[str]:
    """The streams that the route's rules choose."""
    scope = Scope({"event": {}, "payload": {}}).with_variable("output", result.model_dump(mode="json"))
    return [r.to for r in spec(name).publish if r.when is None or scope.holds(r.when, where="test")]


CODE, DB = "agent_jobs:code_gen", "agent_jobs:db"


@on_one_loop
@pytest.mark.parametrize(
    ("task", "stream"),
    [
        ("Write a Python function that reverses a linked list", CODE),
        ("Refactor this class", CODE),
        ("rowing is fun, and so are tabletop games", CODE),
        ("a queryset in Django", CODE),
        ("", CODE),
        ("日本語のコード", CODE),
        ("Select the ten newest rows of the orders table", DB),
        ("sql", DB),
        ("WRITE A SQL QUERY", DB),
        ("first line\nsecond line: the database\nthird line", DB),
        ("drop-table now", DB),
        ("why are these queries slow?", DB),
    ],
)
async def test_the_router_decides(examples, task, stream):
    result = await examples.run("router", task)
    assert published("router", result) == [stream]
    assert result.text == task, "the worker gets the task as it was"
    assert [o.id for o in result.outputs] == [f"ChatOutput-{stream.rpartition(':')[2]}"]


@on_one_loop
async def test_the_router_keeps_interleaved_events_apart(examples):
    tasks = [f"{'sql' if i % 3 else 'code'} {i}" for i in range(60)]
    results = await asyncio.gather(*(examples.run("router", task, session=f"s{task}") for task in tasks))
    assert [r.text for r in results] == tasks
    assert [published("router", r) for r in results] == [[DB if i % 3 else CODE] for i in range(60)]


@on_one_loop
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("code-gen", "[code_gen] This is where a model would write the code for: {task}"),
        ("db", "[db] This is where a model would write the query for: {task}"),
        ("hello", "{task}"),
    ],
)
async def test_the_workers_answer(examples, name, text):
    for task in ("reverse a list", 'with {braces} and "quotes"', "two\nlines"):
        result = await examples.run(name, task)
        assert result.text == text.replace("{task}", task)
        assert len(result.outputs) == 1
        assert published(name, result) == ([] if name == "hello" else ["agent_results:final"])


@on_one_loop
async def test_the_pipelines_streams_meet(examples):
    assert {rule.to for rule in spec("router").publish} == {spec("code-gen").stream, spec("db").stream}
    assert spec("router").stream == "agent_jobs:ingress"


# --- the chat -------------------------------------------------------------------------------------------------------


@on_one_loop
async def test_the_chat_says_what_it_lacks(examples):
    with pytest.raises(RouteFault, match="OPENAI_API_KEY"):
        await examples.run("chat", "hi", session="s", CHAT_MODEL="m")


@on_one_loop
async def test_the_chat_uses_the_model_and_the_server_that_variables_choose(examples, provider: stub.StubProvider):
    where = {"OPENAI_API_KEY": "k-1", "OPENAI_BASE_URL": provider.url, "CHAT_MODEL": "of-my-choice"}
    result = await examples.run("chat", "hi", session="s", **where)
    assert result.text == "echo: hi"
    assert [(seen.key, seen.body["model"]) for seen in provider.chats] == [("k-1", "of-my-choice")]


@on_one_loop
async def test_the_chat_needs_no_key_for_a_server_of_ones_own(examples, provider: stub.StubProvider):
    assert (await examples.run("chat", "hi", OPENAI_BASE_URL=provider.url, CHAT_MODEL="m")).text == "echo: hi"
    assert [seen.key for seen in provider.chats] == ["not-needed"]


@on_one_loop
async def test_the_chat_remembers_its_session_and_no_other(examples, provider: stub.StubProvider):
    provider.default = stub.Transcript()
    where = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": provider.url, "CHAT_MODEL": "m"}
    await examples.run("chat", "My name is Anna.", session="anna", **where)
    await examples.run("chat", "My name is Bert.", session="bert", **where)
    await examples.run("chat", "What is my name?", session="anna", **where)
    assert "My name is Anna." in provider.chats[-1].texts("system")[0]
    assert "Bert" not in json.dumps(provider.chats[-1].messages)
    assert provider.chats[-1].texts("user") == ["What is my name?"]
    await examples.run("chat", "And mine?", **where)
    assert "Anna" not in json.dumps(provider.chats[-1].messages), "without a session there is no memory"
