"""An encoder that is kept writes and refuses what the library's own does."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_models.strict_json import KeptEncoder

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(
            st.text(max_size=3) | st.integers() | st.booleans() | st.none() | st.floats(), inner, max_size=3
        )
    ),
    max_leaves=8,
)


class Name(str):
    """A text of another type."""


def endless() -> list[Any]:
    found: list[Any] = []
    found.append({"again": found})
    return found


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


def told(encode: Callable[[Any], str], value: Any) -> object:
    try:
        return encode(value)
    except (ValueError, TypeError, RecursionError) as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"separators": (",", ":")},
        {"separators": (",", ":"), "allow_nan": False},
        {"default": str},
    ],
)
@given(values)
def test_it_writes_the_same(options: dict[str, Any], value: Any) -> None:
    assert told(KeptEncoder(**options).encode, value) == told(
        json.JSONEncoder(ensure_ascii=False, **options).encode, value
    )


@pytest.mark.parametrize(
    "make",
    [
        object,
        endless,
        deep,
        lambda: {b"x": 1},
        lambda: float("nan"),
        lambda: Name("x"),
        lambda: {"x": {1}},
        lambda: b"x",
    ],
)
@pytest.mark.parametrize("default", [None, lambda value: type(value).__name__])
def test_it_refuses_the_same_and_goes_on(make: Callable[[], Any], default: Callable[[Any], Any] | None) -> None:
    kept, library = (
        KeptEncoder(allow_nan=False, default=default),
        json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=default),
    )
    value = make()
    assert told(kept.encode, [value, value]) == told(library.encode, [value, value])
    assert kept.encode({"x": [1]}) == '{"x": [1]}'


def test_a_cycle_is_met_before_what_stands_beside_it_is_written_again() -> None:
    text = "x" * 1_000_000
    value: dict[str, Any] = {"text": text}
    value["self"] = value
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="Circular"):
            KeptEncoder().encode(value)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(text)
    finally:
        tracemalloc.stop()
    assert KeptEncoder().encode({"text": ""}) == '{"text": ""}'


def test_without_the_accelerator_it_is_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    assert KeptEncoder(separators=(",", ":")).encode({"é": [1.5, None]}) == '{"é":[1.5,null]}'
