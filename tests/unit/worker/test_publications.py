"""What is published downstream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.expressions import ExpressionFailed
from runtime.registry.snapshot import Route
from runtime.worker import publications
from shared_models.dead_letter import ErrorInfo
from shared_models.envelope import EventEnvelope
from shared_models.result import Output, OutputKind, RunResult
from shared_models.route import RouteSpec

RESULT = RunResult(
    text="hi",
    outputs=[Output(id="ChatOutput-a", name="Chat Output", type="ChatOutput", kind=OutputKind.MESSAGE, text="hi")],
)
EVENT = EventEnvelope(
    event_id="e1", root_id="r1", parent_id="p1", step_index=2, idempotency_key="e1", tenant_id="t", session_id="s",
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    payload={"input_value": "x", "context": {"order": 7}},
)  # fmt: skip


def route(**spec) -> Route:
    return Route("r", RouteSpec.model_validate(spec), "v" * 64, "", {}, Path("r.json"))


def published(spec, event=EVENT, result=RESULT):
    made = publications.completed(route(**spec), event, result, 1000)
    return [(p.stream, p.event_id, dict(p.fields)) for p in made]


def test_without_rules_the_outcome_goes_to_the_results_stream():
    [(stream, event_id, fields)] = published({})
    assert stream == "flows:r:results"
    payload = json.loads(fields["payload"])
    assert payload["input_value"] == "hi"
    assert payload["flow"] == "r"
    assert payload["context"] == {"order": 7}
    assert [o["id"] for o in payload["outputs"]] == ["ChatOutput-a"]
    assert fields["event_id"] == event_id
    assert fields["root_id"] == "r1"
    assert fields["parent_id"] == "e1"
    assert fields["step_index"] == "3"
    assert (fields["tenant_id"], fields["session_id"]) == ("t", "s")
    assert fields["traceparent"] == EVENT.traceparent


def test_every_matching_rule_publishes_and_none_matching_falls_back():
    rules = [
        {"to": "a", "when": "output.outputs.exists(o, o.id == 'ChatOutput-a')"},
        {"to": "b", "when": "payload.input_value == 'x'", "payload": "{'input_value': output.text + '!', 'n': 1}"},
        {"to": "c", "when": "false"},
    ]
    made = published({"publish": rules})
    assert [stream for stream, _, _ in made] == ["a", "b"]
    assert json.loads(made[1][2]["payload"]) == {"input_value": "hi!", "n": 1}
    assert published({"publish": rules[2:]})[0][0] == "flows:r:results"


def test_the_ids_are_the_same_each_time_and_differ_by_rule():
    rules = [{"to": "a"}, {"to": "a"}]
    first, again = published({"publish": rules}), published({"publish": rules})
    assert [e for _, e, _ in first] == [e for _, e, _ in again]
    assert len({e for _, e, _ in first}) == 2


def test_a_reply_to_is_told_of_both_ends():
    event = EVENT.model_copy(update={"reply_to": "answers"})
    assert [stream for stream, _, _ in published({}, event)] == ["flows:r:results", "answers"]
    error = ErrorInfo(code="c", message="m", provider_status=429, retryable=True, traceback="not for a reply")
    [told] = publications.dead_lettered(route(), event, error, 1)
    payload = json.loads(dict(told.fields)["payload"])
    assert payload["error"] == {
        "code": "c",
        "message": "m",
        "component_id": None,
        "component_name": None,
        "exception_type": None,
        "provider_status": 429,
        "retryable": True,
    }
    assert payload["context"] == {"order": 7}
    assert publications.dead_lettered(route(), EVENT, ErrorInfo(code="c", message="m"), 1) == ()


@pytest.mark.parametrize(
    "rule", [{"to": "a", "when": "payload.missing == 1"}, {"to": "a", "when": "1"}, {"to": "a", "payload": "[1]"}]
)
def test_a_rule_that_cannot_be_evaluated_is_named(rule):
    with pytest.raises(ExpressionFailed, match=r"route r, publish\[0\]"):
        published({"publish": [rule]})
