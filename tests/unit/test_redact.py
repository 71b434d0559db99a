"""What looks like a secret is masked; what does not stays."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runtime.telemetry import redact
from runtime.telemetry.redact import LONG_NAME, MASK, is_secret_name, mask, mask_text, may_hold_secret

KEY = "sk-proj-abcdefghij0123456789"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"api_key": "x"}, {"api_key": MASK}),
        ({"OPENAI_API_KEY": "x", "model": "m"}, {"OPENAI_API_KEY": MASK, "model": "m"}),
        ({"Authorization": "Bearer abc"}, {"Authorization": MASK}),
        ({"variables": {"db_password": "pw"}}, {"variables": {"db_password": MASK}}),
        ({"access_token": ["a", "b"]}, {"access_token": [MASK, MASK]}),
        ({"max_tokens": 5, "total_tokens": 7, "tokens": "12"}, {"max_tokens": 5, "total_tokens": 7, "tokens": "12"}),
        ({"tokenizer": "bpe", "secretary": 3}, {"tokenizer": "bpe", "secretary": 3}),
        ({"password": None, "token": ""}, {"password": None, "token": ""}),
        ({"text": f"use {KEY} now"}, {"text": f"use {MASK} now"}),
        (7, 7),
    ],
)
def test_data(data: object, expected: object) -> None:
    assert mask(data) == expected


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        "Bearer abcdefgh.ijk",
        "Authorization: Basic dXNlcjpwYXNz",
        "Bearer\tabcdefgh.ijk",
        "Bearer\nabcdefgh.ijk",
        "Authorization->Bearer\u00a0abcdefgh",
        "Proxy-Authorization\tBasic\tdXNlcjpwYXNz",
        "redis://user:hunter22@host:6379/0",
        "ghp_0123456789abcdefghij0123",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
        "xoxb-1234567890-abc",
        "https://x/?api_key=abcdef",
        json.dumps({"api_key": "hunter22 and more"}),
        json.dumps({"inner": json.dumps({"client_secret": "hunter22"})}),
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_text_is_masked(text: str) -> None:
    masked = mask_text(text)
    assert MASK in masked
    for part in (KEY, "hunter22", "abcdefgh.ijk", "dXNlcjpwYXNz", "MIIE", "IOSFODNN7", "abcdef", "c2lnbmF0dXJl"):
        assert part not in masked


@pytest.mark.parametrize(
    "text",
    [
        "no key is set: set OPENAI_API_KEY in the environment, or variables in the route spec",
        "OPENAI_API_KEY: not set",
        '{"max_tokens": 100, "text": "the token limit is 5"}',
        "http://127.0.0.1:11434/v1 refused the connection",
        "task-1234567890123",
        "Basic Prompting (1)",
        "Bearer authentication is missing",
        "flows:router 1700000000000-0",
    ],
)
def test_text_stays(text: str) -> None:
    assert mask_text(text) == text


def test_json_stays_json() -> None:
    text = json.dumps({"token": 'a "quoted\\ value', "list": [1, {"password": "x"}], "n": {"inner": '{"token":"t"}'}})
    assert json.loads(mask_text(text))["list"][1]["password"] == MASK


def test_a_long_text_is_masked_in_linear_time() -> None:
    text = '{"a":"' + 'x\\"' * 300_000 + KEY + '"}'
    assert KEY not in mask_text(text)


PIECES = st.sampled_from((
    "bearer", "Bearer", "authorization", "Authorization", "Basic", "abc123.def456", "hunter22hunter22", " ", "\t", "\n",
    "\u00a0", ":", "://", "@", "/", "->", "=", '"', "\\", ",", "api_key", "token", "Token", "password", "sk-", "ghp_",
    "xoxb-", "AKIAIOSFODNN7EXAMPLE", "eyJabcdefghij", ".", "-----BEGIN ", "PRIVATE KEY-----", "x",
))  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=3), max_size=12).map("".join))
def test_the_short_ways_change_nothing(text: str) -> None:
    expected = redact._JSON.sub(rf"\1{MASK}", text)
    expected = redact._SHAPES.sub(MASK, expected)
    expected = redact._SCHEME.sub(rf"\1{MASK}", expected)
    expected = redact._URL.sub(rf"\1{MASK}\2", expected)
    assert mask_text(text) == redact._ASSIGNED.sub(rf"\1{MASK}", expected)


def test_long_names_are_looked_at_and_not_remembered() -> None:
    redact._known.cache_clear()
    assert is_secret_name("x" * LONG_NAME + "_password")
    assert not is_secret_name("x" * 2 * LONG_NAME)
    assert redact._known.cache_info().currsize == 0


_PARTS = (
    "bearer ",
    "Authorİzation: Basic ",
    "abcdefgh.ijk",
    "://u:",
    "hunter22@h",
    "token",
    "api_key=",
    '"',
    ": ",
    KEY,
    "\n",
)


@example("Authorİzation: Basic dXNlcjpwYXNz")
@example('{"password" : "hunter22"}')
@given(st.lists(st.one_of(st.sampled_from(_PARTS), st.text(max_size=5))).map("".join))
def test_a_text_that_is_let_through_holds_nothing_to_mask(text: str) -> None:
    assert may_hold_secret(text) or mask_text(text) == text


@given(st.lists(st.lists(st.sampled_from(_PARTS), max_size=3).map("".join), max_size=3))
def test_nor_does_any_of_several_texts_that_are_looked_at_together(texts: list[str]) -> None:
    assert may_hold_secret("\n".join(texts)) or [mask_text(text) for text in texts] == texts


def test_what_is_said_every_day_is_let_through() -> None:
    assert not may_hold_secret("run.settled\nhello\n01a22c99-bc18-70dd-a54f-b96fbd26d3ce\ncompleted\ndone")
