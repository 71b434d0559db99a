"""Copies of what is built the same way again and again, without building it. Pure.

Two builds of one thing are walked side by side. What is the very same object in both is shared with any other build,
too; all else is each build's own, and has to be alike: of the same kinds and values, and with the same of its objects
in the same places. A blank is a text in which the two were given to differ (another user's id, say); it is filled in
anew in each copy. Any other difference, and any object whose state lies out of Python's sight, means that there is no
prototype.

A copy is what pickle makes, in C, of the states of the first build's own objects. That it is like the second build is
made sure of before the prototype is used.
"""

from __future__ import annotations

import enum
import io
import pickle
import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Set
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, GenericAlias, MemberDescriptorType, MethodType, ModuleType
from typing import Any

_ATOMS = frozenset({str, int, float, complex, bool, bytes, type(None)})
_FIXED = (type, FunctionType, BuiltinFunctionType, ModuleType, GenericAlias, enum.Enum)
"""What is never copied: it has to be the same object in both builds."""
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_EXACT = frozenset({*_CONTAINERS, OrderedDict, defaultdict})
_BY_IDENTITY: Any = object.__hash__
_HEAP_TYPE = 1 << 9
_POINTER = struct.calcsize("P")
_LONG = 64
"""Characters from which a text is shared rather than made anew."""


_remembered = lru_cache(1024)


class UnlikeError(Exception):
    """Two builds differ, or cannot be copied; the message says where."""


Parts = Callable[[Any], Iterable[tuple[str, Any]]]
"""What tells the parts of a thing, in their order, each with how it is called."""

_NONE: Mapping[type, Parts] = {}


class _Unset:
    """Stands for a slot that holds nothing."""


class Prototype:
    """What copies of a thing are made of.

    ``first`` and ``second`` are two builds of it, which are only read. ``blanks`` are pairs of texts: where the first
    has one, the second has the other. ``opaque`` are types that pickle copies in its own way, with what tells all that
    one of their objects is made of. ``texts`` are long ones that are there anyway: equal ones of the builds are not
    kept beside them. Raises UnlikeError where the builds do not tell what a copy is.
    """

    def __init__(
        self,
        first: Any,
        second: Any,
        *,
        blanks: tuple[tuple[str, str], ...] = (),
        opaque: Mapping[type, Parts] = _NONE,
        texts: Iterable[str] = (),
    ) -> None:
        shared, own = _alike(first, second, dict(blanks), opaque)
        plain = {key for key, value in own.items() if type(value) not in opaque}
        try:
            state, referred = _pickled(first, shared, plain, [text for text, _ in blanks])
            known = {text: text for text in texts}
            self._state = state
            self._shared = [known.get(value, value) if type(value) is str else value for value in referred]
            fillings = [f"{text}'" for text, _ in blanks]
            copy = self.copy(*fillings)
        except UnlikeError:
            raise
        except Exception as error:  # whatever the builds' own methods raise
            raise UnlikeError(f"it cannot be pickled: {type(error).__name__}: {error}") from error
        filled = {text: filling for (_, text), filling in zip(blanks, fillings, strict=True)}
        found, _ = _alike(second, copy, filled, opaque)
        if strays := found.keys() - shared.keys():
            raise UnlikeError(f"a copy would share {found[strays.pop()]!r:.100}")

    def copy(self, *fillings: str) -> Any:
        """A copy with ``fillings`` in the place of the blanks."""
        unpickler = _Unpickler(io.BytesIO(self._state))
        unpickler.persistent_load = (*fillings, *self._shared).__getitem__  # type: ignore[method-assign]  # so it is called in C
        return unpickler.load()

    @property
    def size(self) -> int:
        """Bytes that it takes, without what is shared."""
        return len(self._state)


def _alike(
    first: Any, second: Any, blanks: Mapping[str, str], opaque: Mapping[type, Parts]
) -> tuple[dict[int, Any], dict[int, Any]]:
    """The objects that two builds share, and those that are the first's own, by id. Raises UnlikeError."""
    shared: dict[int, Any] = {}
    own: dict[int, Any] = {}
    twins: dict[int, Any] = {}
    taken: set[int] = set()
    left: list[tuple[Any, Any, tuple[Any, ...]]] = [(first, second, ())]
    while left:
        one, other, way = left.pop()
        kind = type(one)
        if kind is not type(other):
            raise _unlike(way, f"{kind.__name__} and {type(other).__name__}")
        if kind in _ATOMS:
            if not _same(one, other) and (kind is not str or blanks.get(one) != other):
                raise _unlike(way, f"{one!r:.60} and {other!r:.60}")
            continue
        if one is other:
            shared[id(one)] = one
            continue
        if id(one) in twins or id(other) in taken:
            if twins.get(id(one)) is not other:
                raise _unlike(way, "it is in other places, too, but not in both")
            continue
        own[id(one)], twins[id(one)] = one, other
        taken.add(id(other))
        parts = opaque.get(kind)
        ones, others = (list(parts(each) if parts else _parts(each, way)) for each in (one, other))
        if len(ones) != len(others):
            raise _unlike(way, f"{len(ones)} parts and {len(others)}")
        left += [(a, b, (way, step)) for (step, a), (_, b) in zip(ones, others, strict=True)]
    return shared, own


def _same(one: Any, other: Any) -> bool:
    return one is other or one == other or (one != one and other != other)  # noqa: PLR0124  so a NaN is told


def _parts(value: Any, way: tuple[Any, ...]) -> Iterable[tuple[str, Any]]:
    """What a thing is made of, in its order, each with how it is called."""
    kind: Any = type(value)
    if isinstance(value, dict):
        for key, item in value.items():
            _check_key(key, way)
            yield " key", key
            yield f"[{key!r:.60}]", item
        yield ".default_factory", getattr(value, "default_factory", None) if kind is defaultdict else None
    elif isinstance(value, set | frozenset) and all(type(item) in _ATOMS for item in value):
        yield from ((" item", item) for item in sorted(value, key=lambda item: (type(item).__name__, repr(item))))
    elif isinstance(value, set | frozenset):
        for item in value:
            _check_key(item, way)
            yield " item", item
    elif isinstance(value, _CONTAINERS):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
        yield ".maxlen", value.maxlen if isinstance(value, deque) else None
    elif kind is MethodType:
        yield from ((".__func__", value.__func__), (".__self__", value.__self__))
    elif isinstance(value, _FIXED) or not _is_plain(kind):
        raise _unlike(way, f"two of {kind.__module__}.{kind.__qualname__}")
    if kind not in _EXACT and kind is not MethodType:
        yield ".__dict__", _attributes(value)
        yield from ((f".{slot.__name__}", _in_slot(slot, value)) for slot in _slots(kind))


def _check_key(key: Any, way: tuple[Any, ...]) -> None:
    """Refuse what may be hashed before its state is there, in a copy."""
    if isinstance(key, tuple | frozenset):
        for item in key:
            _check_key(item, way)
    elif type(key) not in _ATOMS and not isinstance(key, _FIXED) and getattr(type(key), "__hash__", 0) != _BY_IDENTITY:
        raise _unlike(way, f"a key of {type(key).__qualname__}")


def _pickled(first: Any, shared: Mapping[int, Any], plain: Set[int], blanks: list[str]) -> tuple[bytes, list[Any]]:
    """The states of a build's own objects, and the shared ones that they refer to by number, after the blanks."""
    into = io.BytesIO()
    pickler = _Pickler(into, shared, plain, blanks)
    pickler.dump(first)
    return into.getvalue(), pickler.referred


class _Unpickler(pickle.Unpickler):
    """Of a class made here, since those of C's own take no ``persistent_load`` from Python 3.13 on."""


class _Pickler(pickle.Pickler):
    def __init__(self, into: io.BytesIO, shared: Mapping[int, Any], plain: Set[int], blanks: list[str]) -> None:
        super().__init__(into, pickle.HIGHEST_PROTOCOL)
        self._shared = shared
        self._plain = plain
        self._blanks = blanks
        self._numbers: dict[Any, int] = {}
        self.referred: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        if type(value) is str:
            if value in self._blanks:
                return self._blanks.index(value)
            return self._number(value, value) if len(value) >= _LONG else None
        return self._number(id(value), value) if isinstance(value, _FIXED) or id(value) in self._shared else None

    def reducer_override(self, value: Any) -> Any:
        kind: Any = type(value)
        if kind is MethodType:
            return MethodType, (value.__func__, value.__self__)
        if isinstance(value, _CONTAINERS) or id(value) not in self._plain:
            return NotImplemented
        slots = tuple(_in_slot(slot, value) for slot in _slots(kind))
        return object.__new__, (kind,), (_attributes(value), slots), None, None, _restore

    def _number(self, key: Any, value: Any) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._blanks) + len(self.referred)
            self.referred.append(value)
        return self._numbers[key]


def _restore(value: Any, state: tuple[dict[str, Any] | None, tuple[Any, ...]]) -> None:
    attributes, slots = state
    if attributes is not None:
        object.__setattr__(value, "__dict__", attributes)
    if slots:
        kind: Any = type(value)
        for put, item in zip(_setters(kind), slots, strict=True):
            if item is not _Unset:
                put(value, item)


@_remembered
def _is_plain(kind: Any) -> bool:
    """Whether an instance's state is in its ``__dict__`` and its slots, and nowhere else."""
    room = _POINTER * (len(_slots(kind)) + bool(kind.__dictoffset__) + bool(kind.__weakrefoffset__))
    return (
        all(base is object or base.__flags__ & _HEAP_TYPE for base in kind.__mro__)
        and kind.__itemsize__ == 0
        and kind.__basicsize__ - object.__basicsize__ <= room
    )


@_remembered
def _slots(kind: Any) -> tuple[MemberDescriptorType, ...]:
    return tuple(
        slot for base in kind.__mro__ for slot in vars(base).values() if isinstance(slot, MemberDescriptorType)
    )


@_remembered
def _setters(kind: Any) -> tuple[Callable[[Any, Any], None], ...]:
    return tuple(slot.__set__ for slot in _slots(kind))


def _in_slot(slot: MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return _Unset


def _attributes(value: Any) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found


def _unlike(way: tuple[Any, ...], why: str) -> UnlikeError:
    steps: list[str] = []
    while way:
        way, step = way
        steps.append(step)
    return UnlikeError(f"{''.join(reversed(steps)) or 'the whole'}: {why}")
