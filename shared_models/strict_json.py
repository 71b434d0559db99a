"""JSON as RFC 8259 means it: no NaN, no Infinity, no halves of characters, no bottomless nesting.

Python's reader takes more than the standard does, and what it takes cannot be written again by everybody else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from shared_models.errors import EnvelopeInvalid

MAX_DEPTH = 100
"""How many arrays and objects may lie inside each other."""

_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
_MAY_OVERFLOW = re.compile(r"[eE]\+?[0-9]{3}|[0-9]{300}")


def parse_json(text: str, *, field: str) -> Any:
    """The value of a JSON text. Raises EnvelopeInvalid that names ``field`` and says where the text is no JSON."""
    # A hook for every float is slow; only these can overflow.
    parse_float = _finite if _MAY_OVERFLOW.search(text) else None
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=parse_float)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise EnvelopeInvalid(f"{field}: not JSON: {error.msg} at {where}", field=field) from error
    except ValueError as error:
        reason = str(error).partition(";")[0]
        raise EnvelopeInvalid(f"{field}: not JSON: {reason}", field=field) from error
    except RecursionError as error:
        raise _too_deep(field) from error
    # Cheap bounds first: most payloads are small and need neither walk.
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth_over(value, MAX_DEPTH):
        raise _too_deep(field)
    if _HALF_CHARACTER.search(text):
        _refuse_half_characters(value, field)
    return value


class KeptEncoder(json.JSONEncoder):
    """Writes what ``json.JSONEncoder(ensure_ascii=False, ...)`` writes, and raises what that raises.

    The library makes its encoder in C anew for each text, which takes as long as a short text does. This one is kept.
    """

    def __init__(
        self,
        *,
        allow_nan: bool = True,
        separators: tuple[str, str] = (", ", ": "),
        default: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(ensure_ascii=False, allow_nan=allow_nan, separators=separators, default=default)
        make = getattr(json.encoder, "c_make_encoder", None)  # a Python without the accelerator has none
        item, name = separators
        self._within: dict[int, Any] = {}
        """What is being written, by id: a cycle is met at once, and not once it has been written a thousand times."""
        self._quick: Callable[[Any, int], Iterable[str]] | None = make and make(
            self._within, self.default, json.encoder.encode_basestring, None, name, item, False, False, allow_nan
        )

    def encode(self, o: Any) -> str:
        """The JSON text."""
        if self._quick is not None:
            try:
                return "".join(self._quick(o, 0))
            except Exception:  # noqa: BLE001  the library's own way finds it again, and has its own words for it
                self._within.clear()
        return super().encode(o)


_COMPACT = KeptEncoder(allow_nan=False, separators=(",", ":"))


def dump_json(value: Any, *, field: str) -> str:
    """``value`` as compact JSON. Raises EnvelopeInvalid that names ``field`` where JSON has no way to write it."""
    try:
        text = _COMPACT.encode(value)
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise EnvelopeInvalid(f"{field}: has half of a character (a lone surrogate)", field=field) from error
    except (TypeError, ValueError) as error:
        raise EnvelopeInvalid(f"{field}: cannot be written as JSON: {error}", field=field) from error
    except RecursionError as error:
        raise _too_deep(field) from error
    return text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _depth_over(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [item for part in level for item in _inner(part)]
        if not level:
            return False
    return True


def _inner(value: Any) -> list[Any]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, dict | list)]


def _refuse_half_characters(value: Any, field: str) -> None:
    # RFC 8259, 8.2: what a lone surrogate means is anybody's guess, and UTF-8 cannot carry it on.
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise EnvelopeInvalid(f"{field}: has half of a character (a lone surrogate)", field=field) from error


def _too_deep(field: str) -> EnvelopeInvalid:
    return EnvelopeInvalid(f"{field}: nested more than {MAX_DEPTH} levels deep", field=field)
