from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from runtime.expressions import AFTER_RUN, BEFORE_RUN, ExpressionFailed, Scope, problem

EVENT = {"event_id": "e", "source": "shop", "step_index": 2}
PAYLOAD = {"user": "ada", "n": 3, "list": [1, 2], "nested": {"ok": True}, "none": None}


@pytest.fixture
def scope() -> Scope:
    return Scope({"event": EVENT, "payload": PAYLOAD})


@pytest.mark.parametrize(
    "source",
    [
        "payload.user",
        "event.source + '/' + payload.user",
        "has(payload.x) ? payload.x : 'none'",
        "payload.list.exists(o, o == 2)",
        "payload.list.map(x, x * 2)",
        '{"input_value": payload.user}',
        "size(payload.list) > 1 && payload.nested.ok",
    ],
)
def test_expressions_that_may_stand_in_a_spec(source: str, scope: Scope) -> None:
    assert problem(source, BEFORE_RUN) is None
    scope.evaluate(source, where="input")


def test_output_may_be_used_after_the_run_only() -> None:
    source = "output.outputs.exists(o, o.id == 'ChatOutput-db')"
    assert problem(source, AFTER_RUN) is None
    assert problem(source, BEFORE_RUN) == "unknown name 'output'; an expression may use event, payload"


@pytest.mark.parametrize("source", ["payload.", "payload..x", "(", "payload.user ==", "1 +"])
def test_what_is_no_expression_is_told_in_one_line(source: str) -> None:
    told = problem(source, BEFORE_RUN)
    assert told is not None
    assert told.startswith("not a CEL expression: ")
    assert "\n" not in told


def test_values(scope: Scope) -> None:
    assert scope.evaluate("payload.n + 1", where="x") == 4
    assert scope.evaluate('{"a": payload.list}', where="x") == {"a": [1, 2]}
    assert scope.holds("payload.n == 3", where="x") is True
    assert [scope.text(s, where="x") for s in ("payload.user", "payload.n", "payload.nested.ok")] == [
        "ada",
        "3",
        "true",
    ]


@pytest.mark.parametrize(
    ("method", "source", "message"),
    [
        ("evaluate", "payload.missing", "session: `payload.missing` could not be evaluated for this event"),
        ("evaluate", "payload.user + 1", "could not be evaluated"),
        ("holds", "payload.user", "gave str, not true or false"),
        ("text", "payload.list", "gave list, not a string"),
        ("text", "payload.none", "gave NoneType, not a string"),
    ],
)
def test_what_fails_for_an_event_says_where_and_why(scope: Scope, method: str, source: str, message: str) -> None:
    call: Any = getattr(scope, method)
    with pytest.raises(ExpressionFailed) as caught:
        call(source, where="session")
    assert message in caught.value.message
    assert caught.value.code == "expression_failed"


def test_a_scope_with_the_output_leaves_the_first_as_it_was(scope: Scope) -> None:
    after = scope.with_variable("output", {"text": "hi"})
    assert after.evaluate("output.text + payload.user", where="when") == "hiada"
    with pytest.raises(ExpressionFailed):
        scope.evaluate("output.text", where="when")


def test_a_first_expression_loads_no_command_line() -> None:
    code = (
        "import sys; from runtime.expressions import Scope;"
        "assert Scope({'payload': {'n': 1}}).evaluate('payload.n + 1', where='here') == 2;"
        "assert 'prompt_toolkit' not in sys.modules and 'cel.cli' not in sys.modules, sorted(sys.modules);"
        "import cel.cli; assert cel.cli.Console"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
