"""Route specs as people write them: what is read, and how each mistake is told."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import RouteInvalid
from runtime.registry.spec import read_spec
from runtime.registry.yaml_text import MAX_SPEC, read_yaml
from shared_models.route import Accelerators, RouteSpec, TweaksPolicy, format_duration, parse_duration


def spec(text: str) -> RouteSpec:
    return read_spec(read_yaml(text.encode()))


def fault(text: str | bytes) -> str:
    with pytest.raises(RouteInvalid) as caught:
        read_spec(read_yaml(text if isinstance(text, bytes) else text.encode()))
    return caught.value.message


WHOLE = """
stream: orders
group: billing
enabled: true
concurrency: 4
timeout: 90s
retry:
  max_attempts: 5
  initial: 500ms
  factor: 1.5
  max: 2m
idempotency:
  key: payload.order_id
  ttl: 7d
input: payload.question
session: event.tenant_id + payload.user
publish:
  - to: next
    when: output.text != ""
    payload: '{"input_value": output.text}'
  - to: audit
results:
  stream: outcomes
  keep: 50
dead_letter: graveyard
tweaks: off
variables:
  A: {env: X}
  B: {file: /run/secrets/b, default: none}
  C: literal
event_variables: [D]
upgrade: safe
"""


def test_a_whole_spec() -> None:
    made = spec(WHOLE)
    assert (made.stream, made.group, made.concurrency, made.timeout) == ("orders", "billing", 4, 90.0)
    assert made.retry.model_dump() == {"max_attempts": 5, "initial": 0.5, "factor": 1.5, "max": 120.0, "delays": ()}
    assert (made.idempotency.key, made.idempotency.ttl) == ("payload.order_id", 604800.0)
    assert [rule.to for rule in made.publish] == ["next", "audit"]
    assert made.tweaks is TweaksPolicy.OFF
    assert made.variables["A"].env == "X"
    assert made.variables["C"].value == "literal"
    assert made.upgrade == "safe"


@pytest.mark.parametrize(
    "text", ["", "# only a comment\n", "---\n", "retry:\npublish:\nvariables:\n", "\ufeffstream:\n", "~"]
)
def test_nothing_said_is_all_defaults(text: str) -> None:
    assert spec(text) == RouteSpec()


def test_a_variable_is_the_text_that_was_written() -> None:
    made = spec(
        "variables: {ZIP: 01234, VERSION: 1.10, DEBUG: true, AT: 12:30, BIG: 1_000, E: 1e3, ON: on, DAY: 2025-01-01}"
    )
    assert {name: source.value for name, source in made.variables.items()} == {
        "ZIP": "01234",
        "VERSION": "1.10",
        "DEBUG": "true",
        "AT": "12:30",
        "BIG": "1_000",
        "E": "1e3",
        "ON": "on",
        "DAY": "2025-01-01",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("strem: x", "line 1: unknown key strem; did you mean stream?"),
        ("\n\ntime_out: 5s", "line 3: unknown key time_out; did you mean timeout?"),
        ("max_attempts: 5", "line 1: unknown key max_attempts; did you mean retry.max_attempts?"),
        ("max_retries: 5", "line 1: unknown key max_retries; did you mean retry.max_attempts?"),
        ("topic: x", "line 1: unknown key topic; did you mean stream?"),
        ("name: x", "line 1: unknown key name; the file's name is the route's name"),
        ("retry:\n  attempts: 5", "line 2: unknown key retry.attempts; did you mean max_attempts?"),
        ("publish:\n- to: x\n  if: 'true'", "line 3: unknown key publish[0].if; known here: to, when, payload"),
        ("xyzzy: 1", "line 1: unknown key xyzzy; known here: stream, group, enabled"),
        ("flows: {}", "line 1: flows is for a file that holds several flows"),
        ("order_by: payload.user", "line 1: order_by is not built yet; remove it"),
        ("isolation: process", "shared"),
        ("limits:\n  rate: 5", "line 2: limits.rate: 5 is not a rate; write a number and a unit of time: 50/s"),
        ("limits:\n  rate: 5.5", "line 2: limits.rate: '5.5' is not a rate"),
        ("limits:\n  tenant:\n    rate: 5.5", "line 3: limits.tenant.rate: '5.5' is not a rate"),
        ("limits:\n  tenant:\n    rate: 0/s", "line 3: limits.tenant.rate: '0/s' is not a rate"),
        ("limits:\n  tennant: {}", "line 2: unknown key limits.tennant; did you mean tenant?"),
        ("webhook: {}", "line 1: webhook: secrets is missing"),
        ("webhook:\n  secrets: [abc]", "line 2: webhook.secrets[0]: should be"),
        ("webhook:\n  secrets:\n  - value: abc", "line 3: unknown key webhook.secrets[0].value"),
        ("webhook:\n  secrets:\n  - file: abc", "line 3: webhook.secrets[0]: a gateway knows no flows folder"),
        ("webhook:\n  secrets:\n  - env: A\n  tolerance: 9.5", "line 4: webhook.tolerance: '9.5' is not a duration"),
        ("join: {}", "line 1: join is not built yet; remove it"),
        ("timeout: 30", "line 1: timeout: 30 is not a duration; write a number and a unit: 500ms, 30s, 10m, 24h, 7d"),
        ("timeout: 30.5", "line 1: timeout: '30.5' is not a duration"),
        ("timeout: 0s", "line 1: timeout: should be greater than 0"),
        ("retry:\n  initial: 2.0", "line 2: retry.initial: '2.0' is not a duration"),
        ("retry:\n  max_attempts: 0", "line 2: retry.max_attempts: should be greater than or equal to 1 (it is 0)"),
        ("retry: 3", "line 1: retry: should be a mapping of keys to values (it is 3)"),
        ("retry: 3", "line 1: retry: "),
        ("concurrency: many", "line 1: concurrency: should be a valid integer"),
        ("publish:\n  to: x", "line 1: publish: should be a list"),
        ("publish:\n- when: 'true'", "line 2: publish[0]: to is missing"),
        ("publish:\n- to: hr:x", "line 2: publish[0].to: names that begin with 'hr:' are Headrace's own"),
        ("dead_letter: hr:x", "line 1: dead_letter: names that begin with"),
        ("results: {stream: hr:x}", "line 1: results.stream: names that begin with"),
        ("stream: a}b", "closing brace without a pair"),
        ("group: pub", "line 1: group: the group name 'pub' is Headrace's own"),
        ("group: a b", "line 1: group: begins with a letter or digit"),
        ("tweaks: sometimes", "line 1: tweaks: write off, declared, permissive, or a list of Component-id.field"),
        ("event_variables: all", "line 1: event_variables: write any, or a list of names"),
        ("upgrade: maybe", "line 1: upgrade: write none or safe"),
        ("variables:\n  A:", "line 2: variables.A: write {env: NAME}, {file: PATH} or the value itself, as text"),
        ("variables:\n  A: {env: X, value: y}", "line 2: variables.A: write {env: NAME}"),
        ("variables: [A]", "line 1: variables: should be a"),
        ("a: 1\na: 2", "line 2: the key 'a' is given twice (before in line 1)"),
        ("retry:\n  max: 1s\n  max: 2s", "line 3: the key 'max' is given twice (before in line 2)"),
        ("- a\n- b", "line 1: a route spec is a mapping of keys to values"),
        ("just text", "line 1: a route spec is a mapping of keys to values"),
        ("stream: a: b", "line 1, column 10: mapping values are not allowed here (put a value that holds a colon in"),
        ("retry:\n\tmax: 1s", "line 2, column 1: a tab; YAML is indented with spaces"),
        ("stream: [a", "line 1"),
        ("a: &x 1\nb: *x", "line 2, column 4: references (*name) are not supported; write the value out"),
        ("a: 1\n---\nb: 2", "line 2"),
        ("stream: !!python/name:os.system x", "line 1: 'x' cannot be read as python/name:os.system"),
        ("? [a]\n: b", "line 1: a key has to be a word"),
        (b"stream: \xff", "is not UTF-8 (byte 8)"),
        (b"stream: a\x00b", "is not YAML"),
        ("#" * (MAX_SPEC + 1), "a route spec may have at most"),
        ("input: payload.", "line 1: input: not a CEL expression"),
        ("input: output.text", "line 1: input: unknown name 'output'; an expression may use event, payload"),
        ("session: user.id", "line 1: session: unknown name 'user'"),
        ("idempotency:\n  key: pyload.id", "line 2: idempotency.key: unknown name 'pyload'"),
        ("publish:\n- to: a\n- to: b\n  when: outputs.text == ''", "line 4: publish[1].when: unknown name 'outputs'"),
        ("publish:\n- to: a\n  payload: '{'", "line 3: publish[0].payload: not a CEL expression"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_and_what_to_do(text: str | bytes, message: str) -> None:
    assert message in fault(text)


def test_every_mistake_is_told_at_once_in_the_order_of_the_lines() -> None:
    told = fault("strem: x\ntimeout: 5\nretry:\n  max_attempts: 0\n")
    assert [part.split(":")[0] for part in told.split("; line")] == ["line 1", " 2", " 4"]


def test_a_variables_value_is_never_told() -> None:
    assert "s3cret" not in fault("variables:\n  KEY: {valu: s3cret}\n  OTHER: [s3cret]")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_spec_or_a_told_mistake(raw: bytes) -> None:
    try:
        read_spec(read_yaml(raw))
    except RouteInvalid as error:
        assert error.message


keys = st.sampled_from(
    ["stream", "retry", "publish", "variables", "tweaks", "input", "timeout", "results", "nonsense", "flows"]
)
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
nested = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=2), max_leaves=5
)


@given(st.dictionaries(keys, nested, max_size=3))
def test_any_mapping_is_a_spec_or_a_told_mistake(value: dict[str, Any]) -> None:
    try:
        spec(yaml.safe_dump(value))
    except RouteInvalid as error:
        assert error.message


@given(st.integers(1, 10**7))
def test_durations_are_read_back(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("1.5m", 90), ("24h", 86400), ("7d", 604800), (" 1s ", 1)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "5", "5 s", "-1s", "1s2", "s", None, 5, True])
def test_what_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(value)


def test_accelerators_are_switched_off_one_by_one_or_all() -> None:
    assert spec("").engine.accelerators.off == frozenset()
    assert spec("engine: {accelerators: {classes: off}}").engine.accelerators.off == {"classes"}
    assert len(spec("engine: {accelerators: off}").engine.accelerators.off) == len(Accelerators.model_fields)
    assert "clases" in fault("engine: {accelerators: {clases: off}}")
