"""Any value as strict JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.plain import MAX_BYTES, MAX_DEPTH, plain

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(max_size=20),
    st.decimals(),
    st.dates(),
    st.datetimes(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
    st.complex_numbers(),
)
KEYS = st.one_of(st.text(max_size=5), st.integers(), st.booleans(), st.none(), st.floats())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        st.tuples(inner, inner),
        st.frozensets(st.one_of(st.text(), st.integers()), max_size=3),
    ),
    max_leaves=15,
)


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_every_value_becomes_strict_json(value: Any) -> None:
    text = json.dumps(plain(value), allow_nan=False)
    assert json.loads(text) == plain(value)
    text.encode("utf-8")


def test_numbers_that_json_has_no_word_for() -> None:
    assert plain([math.nan, math.inf, -math.inf, 1.5]) == [None, None, None, 1.5]
    assert plain(2**70) == str(2**70)
    assert plain(2**53 + 1) == 2**53 + 1


def test_what_nests_too_deep_is_cut() -> None:
    value: Any = "end"
    for _ in range(MAX_DEPTH + 5):
        value = [value]
    text = json.dumps(plain(value))
    assert "nested too deep" in text
    loop: list[Any] = []
    loop.append(loop)
    json.dumps(plain(loop))


def test_private_keys_are_left_out() -> None:
    assert plain({"_text_stream": object(), "a": 1}) == {"a": 1}


def test_long_bytes_are_told_by_their_length() -> None:
    assert plain(b"x" * (MAX_BYTES + 1)) == {"bytes": MAX_BYTES + 1}
    assert plain(b"hi") == {"bytes": 2, "base64": "aGk="}


def test_objects_are_told_by_their_type_never_by_their_text() -> None:
    class Holds:
        def __repr__(self) -> str:
            return "secret"

    told = plain({"x": Holds(), "e": ValueError("secret")})
    assert "secret" not in json.dumps(told)
    assert told["e"] == {"unserialisable": "builtins.ValueError"}


def test_objects_that_misbehave_do_no_harm() -> None:
    class Bad:
        @property
        def tolist(self) -> Any:
            raise RuntimeError("no")

    assert "unserialisable" in plain(Bad())


def test_a_dataclass_is_its_fields() -> None:
    @dataclasses.dataclass
    class Point:
        x: float

    assert plain(Point(math.nan)) == {"x": None}
    assert plain(Point) == {"unserialisable": plain(Point)["unserialisable"]}


def test_streams_are_not_read() -> None:
    stream = iter([1, 2])
    assert plain(stream)["reason"] == "a stream"
    assert list(stream) == [1, 2]
