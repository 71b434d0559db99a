"""Any Python value as strict JSON. Pure; knows pandas and numpy by their shape, not by import.

NaN and infinities become null; times become ISO 8601 text; bytes become ``{"bytes": length, "base64": ...}`` up to a
limit; what has no JSON form becomes ``{"unserialisable": "module.Type"}``, never an exception and never a repr that
could hold an address or a secret.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import math
import pathlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Set
from typing import Any

from pydantic import BaseModel

MAX_DEPTH = 40
MAX_BYTES = 64 * 1024
"""Longer byte strings are told by their length alone."""

MAX_INT = 2**63


def plain(value: Any, depth: int = 0) -> Any:
    """``value`` as what ``json.dumps(..., allow_nan=False)`` takes. Keys beginning with ``_`` are left out."""
    if value is None or (isinstance(value, str | bool) and type(value) in (str, bool)):
        return _clean_text(value) if isinstance(value, str) else value
    if depth > MAX_DEPTH:
        return placeholder(value, reason="nested too deep")
    for kind, convert in _CONVERTERS:
        if isinstance(value, kind):
            return convert(value, depth)
    return _by_shape(value, depth)


def placeholder(value: Any, **more: Any) -> dict[str, Any]:
    """What stands for a value that has no JSON form."""
    kind = type(value)
    return {"unserialisable": f"{kind.__module__}.{kind.__qualname__}", **more}


def table(value: Any, depth: int = 0) -> dict[str, Any]:
    """A pandas DataFrame as ``{"columns": [...], "rows": [{...}]}``. Repeated column names get a number."""
    columns = _unique([str(_scalar_name(column)) for column in value.columns])
    rows = [
        {name: plain(cell, depth + 1) for name, cell in zip(columns, row, strict=True)}
        for row in value.itertuples(index=False, name=None)
    ]
    return {"columns": columns, "rows": rows}


def is_table(value: Any) -> bool:
    """Whether ``value`` is a pandas DataFrame or a subclass of it."""
    return hasattr(value, "columns") and hasattr(value, "itertuples") and hasattr(value, "iloc")


def _clean_text(value: str) -> str:
    # A lone surrogate cannot be encoded as UTF-8, so it would break every writer downstream.
    return value.encode("utf-8", "replace").decode() if not value.isascii() else value


def _number(value: float, _depth: int) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _integer(value: int, _depth: int) -> int | str:
    number = int(value)
    return number if -MAX_INT <= number < 2 * MAX_INT else str(number)


def _decimal(value: decimal.Decimal, _depth: int) -> str | None:
    return str(value) if value.is_finite() else None


def _bytes(value: bytes | bytearray | memoryview, _depth: int) -> dict[str, Any]:
    raw = bytes(value)
    if len(raw) > MAX_BYTES:
        return {"bytes": len(raw)}
    return {"bytes": len(raw), "base64": base64.b64encode(raw).decode()}


def _time(value: Any, _depth: int) -> str | None:
    # pandas' NaT is a datetime whose isoformat says "NaT".
    return None if value != value else str(value.isoformat())  # noqa: PLR0124  NaT alone is not itself


def _duration(value: datetime.timedelta, _depth: int) -> float | None:
    return None if value != value else value.total_seconds()  # noqa: PLR0124  as above


def _mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    return {
        _clean_text(str(key)): plain(item, depth + 1) for key, item in value.items() if not str(key).startswith("_")
    }


def _sequence(value: Any, depth: int) -> list[Any]:
    return [plain(item, depth + 1) for item in value]


def _set(value: Set[Any], depth: int) -> list[Any]:
    return [plain(item, depth + 1) for item in sorted(value, key=repr)]


def _model(value: BaseModel, depth: int) -> Any:
    try:
        return plain(dict(value), depth + 1)
    except Exception as error:  # noqa: BLE001  a model may compute its fields, and fail at it
        return placeholder(value, reason=type(error).__name__)


def _dataclass(value: Any, depth: int) -> Any:
    if isinstance(value, type):
        return placeholder(value)
    return {f.name: plain(getattr(value, f.name, None), depth + 1) for f in dataclasses.fields(value)}


def _by_shape(value: Any, depth: int) -> Any:
    """Numpy scalars and arrays, pandas objects and dataclasses, told by what they can do."""
    if is_table(value):
        return table(value, depth)
    try:
        if dataclasses.is_dataclass(value):
            return _dataclass(value, depth)
        if callable(getattr(value, "tolist", None)):  # numpy scalar or array, pandas Series and Index
            return plain(value.tolist(), depth + 1)
        if type(value).__name__ == "NAType":
            return None
    except Exception as error:  # noqa: BLE001  foreign objects may do anything
        return placeholder(value, reason=type(error).__name__)
    return placeholder(value)


def _unique(names: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    out = []
    for name in names:
        count = seen.get(name, 0)
        seen[name] = count + 1
        out.append(name if not count else f"{name}.{count}")
    return out


def _scalar_name(column: Any) -> Any:
    return ".".join(map(str, column)) if isinstance(column, tuple) else column


_CONVERTERS: tuple[tuple[Any, Callable[[Any, int], Any]], ...] = (
    (enum.Enum, lambda value, depth: plain(value.value, depth + 1)),
    (str, lambda value, _depth: _clean_text(str.__str__(value))),
    (bool, lambda value, _depth: bool(value)),
    (int, _integer),
    (float, _number),
    (complex, lambda value, _depth: str(value)),
    (decimal.Decimal, _decimal),
    (datetime.timedelta, _duration),
    ((datetime.datetime, datetime.date, datetime.time), _time),
    ((uuid.UUID, pathlib.PurePath), lambda value, _depth: str(value)),
    ((bytes, bytearray, memoryview), _bytes),
    (BaseModel, _model),
    (Mapping, _mapping),
    ((list, tuple), _sequence),
    (Set, _set),
    ((Iterator, AsyncIterator), lambda value, _depth: placeholder(value, reason="a stream")),
    (BaseException, lambda value, _depth: placeholder(value)),
)
