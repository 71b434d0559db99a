"""From an event's fields and payload, by way of the route spec, to the flow; and from its outputs to a result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.broker.keys import RouteKeys
from shared_models.result import RunStatus
from tests.support import flows
from tests.support.flows import Field, Flow
from tests.support.harness import Client, client, running
from tests.support.provider import Say
from tests.support.real import REAL, put, text

pytestmark = REAL


def telling() -> Flow:
    """A flow that says its input, its session, a field, and a variable as JSON."""
    body = """
        def work(self) -> Message:
            import json
            told = {"text": self.text, "session": self.graph.session_id, "word": self.word, "secret": self.secret}
            return Message(text=json.dumps(told))
    """
    inputs = (
        'MessageTextInput(name="word", display_name="Word"), MessageTextInput(name="own", display_name="Own"), '
        'MessageTextInput(name="secret", display_name="Secret")'
    )
    values = {
        "word": Field(value="saved", api_editable=True),
        "own": "saved",
        "secret": Field(value="WHOSE", load_from_db=True),
    }
    return flows.through(body, inputs=inputs, values=values)


async def told(c: Client, keys: RouteKeys, payload: dict[str, Any], **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await text(c, keys, payload, **fields))
    return found


async def refused(c: Client, keys: RouteKeys, payload: dict[str, Any]) -> str:
    """The code with which an event is dead-lettered, at its first attempt."""
    run = await c.run(keys, await c.send(keys.stream, payload))
    assert (run.status, run.attempts) == (RunStatus.DEAD_LETTERED, 1), run
    assert run.dead_letter is not None
    return run.dead_letter.code


VARIABLE = {"variables": {"WHOSE": "the route's"}}


async def test_the_session_is_the_fields_then_the_payloads(server_url, engine, tmp_path):
    keys = put(tmp_path, "telling", telling(), **VARIABLE)
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        both = {"input_value": "x", "session_id": "of the payload"}
        assert (await told(c, keys, both))["session"] == "of the payload"
        assert (await told(c, keys, both, session_id="of the field"))["session"] == "of the field"
        assert (await told(c, keys, {"input_value": "x"}))["session"] in (None, "")


async def test_input_and_session_of_the_route_spec_are_expressions(server_url, engine, tmp_path):
    spec = {"input": "payload.task.title + '!'", "session": "event.tenant_id + '/' + payload.user", **VARIABLE}
    keys = put(tmp_path, "telling", telling(), **spec)
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        payload = {"task": {"title": "write"}, "user": "ada", "input_value": "not this", "session_id": "nor this"}
        found = await told(c, keys, payload, tenant_id="acme", session_id="nor that")
        assert (found["text"], found["session"]) == ("write!", "acme/ada")
        assert await refused(c, keys, {"user": "ada"}) == "expression_failed"


@pytest.mark.parametrize(
    ("policy", "tweaks", "outcome"),
    [
        (None, {"Custom-it": {"word": "t"}}, "tweak_refused"),
        (False, {"Custom-it": {"word": "t"}}, "tweak_refused"),
        ("declared", {"Custom-it": {"word": "t"}}, "word=t"),
        ("declared", {"Custom-it": {"own": "t"}}, "tweak_refused"),
        (["Custom-it.own"], {"Custom-it": {"own": "t"}}, "word=saved"),
        (["Custom-it.own"], {"Custom-it": {"word": "t"}}, "tweak_refused"),
        ("permissive", {"Custom": {"word": "t"}}, "word=t"),
        ("permissive", {"Custom-it": {"code": "print()"}}, "tweak_refused"),
        ("permissive", {"Custom-it": {"wrod": "t"}}, "tweak_unknown"),
    ],
)
async def test_tweaks_go_as_far_as_the_route_lets_them(server_url, engine, tmp_path, policy, tweaks, outcome):
    spec = {**VARIABLE, **({} if policy is None else {"tweaks": policy})}
    keys = put(tmp_path, "telling", telling(), **spec)
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        payload = {"input_value": "x", "tweaks": tweaks}
        if outcome.startswith("word="):
            assert (await told(c, keys, payload))["word"] == outcome.removeprefix("word=")
        else:
            assert await refused(c, keys, payload) == outcome
        assert (await told(c, keys, {"input_value": "x"}))["word"] == "saved"


async def test_variables_are_the_routes_unless_the_event_may_bring_them(server_url, engine, tmp_path):
    closed = put(tmp_path, "closed", telling(), **VARIABLE)
    listed = put(tmp_path, "listed", telling(), event_variables=["WHOSE"], **VARIABLE)
    anything = put(tmp_path, "anything", telling(), event_variables="any")
    brings = {"input_value": "x", "variables": {"WHOSE": "the event's"}}
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        assert (await told(c, closed, {"input_value": "x"}))["secret"] == "the route's"
        assert await refused(c, closed, brings) == "variable_refused"
        assert (await told(c, listed, brings))["secret"] == "the event's"
        assert (await told(c, listed, {"input_value": "x"}))["secret"] == "the route's"
        assert (await told(c, anything, brings))["secret"] == "the event's"
        for wrong in ({"WHOSE": 3}, ["WHOSE"]):
            assert await refused(c, listed, {"input_value": "x", "variables": wrong}) == "variable_invalid"


async def test_a_producers_bare_fields_and_shapes_reach_the_flow(server_url, engine, tmp_path):
    keys = put(tmp_path, "hello", flows.hello())
    shapes: list[tuple[dict[str, str], str]] = [
        ({"input_value": "bare"}, "bare"),
        ({"payload": '{"input_value": "object"}'}, "object"),
        ({"message": "plain text"}, "plain text"),
        ({"ce": '{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"input_value":"cloud"}}'}, "cloud"),
    ]
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        for fields, wanted in shapes:
            await c.redis.xadd(keys.stream, fields)
            results = await c.entries("flows:hello:results", 1)
            assert json.loads(results[0]["payload"])["input_value"] == wanted
            await c.redis.delete("flows:hello:results")


# --- outputs --------------------------------------------------------------------------------------------------------


async def test_c7_a_model_that_streams_gives_its_full_text_to_every_component(server_url, engine, tmp_path, provider):
    provider.default = Say("the whole long answer")
    flow = flows.llm(stream=True)
    text_out = flow.add("TextOutput", "TextOutput-out")
    flow.connect("ChatOutput-out", "message", text_out, "input_value")
    keys = put(tmp_path, "chat", flow, variables={"OPENAI_COMPATIBLE_BASE_URL": provider.url})
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        run = await c.run(keys, await c.send(keys.stream, {"input_value": "hi"}))
        assert run.result is not None
        assert {(o.id, o.text) for o in run.result.outputs} == {
            ("ChatOutput-out", "the whole long answer"),
            ("TextOutput-out", "the whole long answer"),
        }


async def test_c8_every_output_comes_with_component_id_and_name(server_url, engine, tmp_path):
    keys = put(tmp_path, "two", flows.two_outputs())
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        await c.send(keys.stream, {"input_value": "hi"})
        [result] = await c.entries("flows:two:results", 1)
        payload = json.loads(result["payload"])
        assert [(o["id"], o["name"], o["type"], o["text"]) for o in payload["outputs"]] == [
            ("ChatOutput-first", "First", "ChatOutput", "hi"),
            ("ChatOutput-second", "Second", "ChatOutput", "HI"),
        ]
        assert payload["input_value"] == "hi"


async def test_the_branch_that_was_taken_decides_where_an_outcome_goes(server_url, engine, tmp_path):
    rules = [
        {"to": "yes", "when": "output.outputs.exists(o, o.id == 'ChatOutput-yes')"},
        {"to": "no", "when": "output.outputs.exists(o, o.id == 'ChatOutput-no')"},
    ]
    keys = put(tmp_path, "fork", flows.router(match="left"), publish=rules)
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        left = await c.send(keys.stream, {"input_value": "turn left"})
        right = await c.send(keys.stream, {"input_value": "turn right"})
        assert [r["parent_id"] for r in await c.entries("yes", 1)] == [left]
        assert [r["parent_id"] for r in await c.entries("no", 1)] == [right]
        assert await c.redis.exists("flows:fork:results") == 0


async def test_c5_what_is_no_json_becomes_strict_json(server_url, engine, tmp_path):
    body = """
        def work(self) -> Data:
            import datetime
            import numpy, pandas
            return Data(data={
                "nan": float("nan"), "inf": numpy.float32("inf"), "bytes": b"\\xff\\x00", "when": pandas.Timestamp(0),
                "table": pandas.DataFrame({"a": [1, float("nan")]}), "day": datetime.date(2024, 1, 2),
            })
    """
    flow = flows.through(body, output=None, imports="from lfx.schema.data import Data")
    keys = put(tmp_path, "odd", flow)
    async with client(server_url) as c, running(server_url, tmp_path, engine=engine):
        await c.send(keys.stream, {"input_value": "hi"})
        [result] = await c.entries("flows:odd:results", 1)

        def no(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        data = json.loads(result["payload"], parse_constant=no)["outputs"][0]["data"]
        assert data["nan"] is data["inf"] is None
        assert data["day"].startswith("2024-01-02")
