"""Copies of what is built the same way again and again."""

from __future__ import annotations

import copy
import enum
import functools
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, PrivateAttr

from runtime.engine.prototypes import Prototype, UnlikeError

ONCE = {"shared": ["by all"]}
ALIAS = list[int]


class Colour(enum.Enum):
    RED = 1


class Slotted:
    __slots__ = ("__hidden", "left_empty", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.__hidden = [value]

    def hidden(self) -> Any:
        return self.__hidden


class Stubborn:
    """Sets nothing, has everything, and must not be made by calling it."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        object.__setattr__(self, "inner", {"a": 1})

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)

    def __getattr__(self, name: str) -> Any:
        return f"no {name}"


class Model(BaseModel):
    name: str
    parts: list[Any] = []
    _secret: dict[str, Any] = PrivateAttr(default_factory=dict)


class Node:
    def __init__(self, name: str) -> None:
        self.name = name
        self.links: list[Node] = []
        self.speak = self.say

    def say(self) -> str:
        return self.name


class Named(dict[str, Any]):
    """A dictionary with attributes of its own."""


def everything(user: str = "") -> dict[str, Any]:
    """One of everything that can be copied."""
    first, second = Node("first"), Node("second")
    first.links, second.links = [second, first], [first]
    common = ["twice"]
    named = Named(a=common)
    named.extra = {"b": 2}  # type: ignore[attr-defined]
    model = Model(name="m", parts=[common])
    model._secret["k"] = [1]
    slotted = Slotted({"deep": common})
    return {
        "user": user,
        "again": [user],
        "nodes": {"first": first, "second": second},
        "common": common,
        "named": named,
        "model": model,
        "slotted": slotted,
        "stubborn": Stubborn(),
        "atoms": [1, 2.5, float("nan"), True, None, b"x", 10**30, 1j, "x\ud800", "long" * 50],
        "fixed": [Colour.RED, int, len, everything, enum, ALIAS],
        "containers": [(1, [2]), {3, 4}, frozenset("ab"), deque([5, [6]], maxlen=3), OrderedDict(z=1, y=2)],
        "counts": defaultdict(list, {"a": [1]}),
        "once": ONCE,
    }


def test_a_copy_is_what_a_build_is() -> None:
    prototype = Prototype(everything("one"), everything("other"), blanks=(("one", "other"),))
    made = Stubborn.made
    copied, another = prototype.copy("mine"), prototype.copy("yours")
    assert Stubborn.made == made
    assert copied["user"] == copied["again"][0] == "mine" and another["user"] == "yours"
    first, second = copied["nodes"]["first"], copied["nodes"]["second"]
    assert type(first) is Node and first.links == [second, first] and second.links == [first]
    assert first.speak() == "first" and first.speak.__self__ is first
    assert copied["named"]["a"] is copied["common"] is copied["slotted"].value["deep"] is copied["model"].parts[0]
    assert type(copied["named"]) is Named and copied["named"].extra == {"b": 2}
    want = everything("mine")
    assert copied["model"] == want["model"] and copied["model"].model_fields_set == {"name", "parts"}
    assert copied["slotted"].hidden() == [copied["slotted"].value] and not hasattr(copied["slotted"], "left_empty")
    assert copied["stubborn"].inner == {"a": 1} and copied["stubborn"].other == "no other"
    assert repr(copied["atoms"]) == repr(want["atoms"]) and copied["fixed"] == want["fixed"]
    assert copied["containers"] == want["containers"] and copied["containers"][3].maxlen == 3
    assert list(copied["containers"][4]) == ["z", "y"]
    assert copied["counts"] == want["counts"] and copied["counts"]["b"] == []
    assert copied["once"] is ONCE


def test_copies_have_nothing_in_common_but_what_all_builds_have() -> None:
    prototype = Prototype(everything(), everything())
    one, other = prototype.copy(), prototype.copy()
    one["common"].append("changed")
    one["nodes"]["first"].name = "changed"
    one["model"].parts.append("changed")
    one["counts"]["a"].append("changed")
    one["containers"][0][1].append("changed")
    assert other["common"] == prototype.copy()["common"] == ["twice"]
    assert other["nodes"]["first"].name == "first"
    assert other["model"].parts == [["twice"]]
    assert other["counts"] == {"a": [1]}
    assert other["containers"][0] == (1, [2])


def differing(change: Callable[[dict[str, Any]], Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two builds, of which the other is changed."""
    one, other = everything(), everything()
    change(other)
    return one, other


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda it: it["atoms"].__setitem__(0, 2), "['atoms'][0]: 1 and 2"),
        (lambda it: it["atoms"].__setitem__(3, 1), "['atoms'][3]: bool and int"),
        (lambda it: it["atoms"].append(1), "['atoms']: 11 parts and 12"),
        (lambda it: it["named"].__setitem__("a", ["twice"]), "other places"),
        (lambda it: it["nodes"]["second"].links.__setitem__(0, Node("first")), "['links']"),
        (lambda it: it["fixed"].__setitem__(2, max), "builtin_function_or_method"),
        (lambda it: it["containers"][1].add(5), "['containers'][1]: 2 parts and 3"),
        (lambda it: it["containers"].__setitem__(3, deque([5, [6]], maxlen=4)), ".maxlen: 3 and 4"),
        (lambda it: it["counts"].__setattr__("default_factory", dict), ".default_factory"),
        (lambda it: it["model"]._secret.__setitem__("k", [2]), "[0]: 1 and 2"),
        (lambda it: setattr(it["slotted"], "left_empty", 1), ".left_empty: type and int"),
        (lambda it: it["nodes"]["first"].__dict__.update(more=1), "parts and"),
    ],
)
def test_builds_that_differ_have_no_prototype(change: Callable[[dict[str, Any]], Any], where: str) -> None:
    one, other = differing(change)
    for pair in ((one, other), (other, one)):
        with pytest.raises(UnlikeError):
            Prototype(*pair)
    with pytest.raises(UnlikeError) as error:
        Prototype(one, other)
    assert where in str(error.value)


def test_what_is_equal_but_each_builds_own_is_not_shared() -> None:
    one, other = differing(lambda it: it.update(once=copy.deepcopy(ONCE)))
    copied = Prototype(one, other).copy()["once"]
    assert copied == ONCE and copied is not ONCE and copied["shared"] is not ONCE["shared"]


def generator() -> Any:
    yield 1


class Partial(functools.partial[Any]):
    """Has state in C beside what Python sees."""


@pytest.mark.parametrize(
    "make",
    [
        threading.Lock,
        generator,
        lambda: lambda: 1,
        lambda: iter([1]),
        lambda: functools.partial(print, 1),
        lambda: Partial(print, 1),
        lambda: ValueError("x"),
        lambda: memoryview(b"x"),
        lambda: bytearray(b"x"),
    ],
)
def test_what_hides_its_state_has_no_prototype(make: Callable[[], Any]) -> None:
    with pytest.raises(UnlikeError):
        Prototype({"it": make()}, {"it": make()})


def test_a_text_that_holds_a_blanks_text_has_no_prototype() -> None:
    with pytest.raises(UnlikeError, match="'for one' and 'for other'"):
        Prototype(["one", "for one"], ["other", "for other"], blanks=(("one", "other"),))


def test_a_blank_that_both_have_has_no_prototype() -> None:
    with pytest.raises(UnlikeError, match="'one'"):
        Prototype(["one", "one"], ["other", "one"], blanks=(("one", "other"),))


def test_a_type_that_pickle_knows_is_compared_by_what_it_is_told_to_be_made_of() -> None:
    def parts(value: bytearray) -> list[tuple[str, Any]]:
        return [(".bytes", bytes(value))]

    made = Prototype([bytearray(b"a")], [bytearray(b"a")], opaque={bytearray: parts}).copy()
    assert made == [bytearray(b"a")] and type(made[0]) is bytearray
    with pytest.raises(UnlikeError, match=r"\.bytes"):
        Prototype([bytearray(b"a")], [bytearray(b"b")], opaque={bytearray: parts})


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.builds(lambda value: [value, value], inner)
        | st.builds(Slotted, inner)
        | st.builds(lambda parts: Model(name="n", parts=parts), st.lists(inner, max_size=3))
    ),
    max_leaves=20,
)


@given(tree=TREES)
def test_any_tree_is_copied_as_deepcopy_copies_it(tree: Any) -> None:
    twin = copy.deepcopy(tree)
    copied = Prototype([tree], [twin]).copy()
    Prototype([twin], copied)  # which compares them, down to what is the same object
    assert Prototype([tree], [twin]).copy() is not copied
