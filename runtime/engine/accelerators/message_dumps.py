"""Dump the contents and times of messages the short way.

Why: a message is dumped several times a run, an agent's up to ten; each of its contents goes through FastAPI's encoder,
value by value, for what JSON does not have, and its time is parsed only to be written the same again.
Safe because: what is plain JSON is copied as the encoder would copy it, as long as it is told to write in another way
nothing that plain JSON could be; and a time in the very form that is written is left as it is, once it is seen to be
one. Everything else goes to the engine's own.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target
from runtime.engine.accelerators.json_copies import NotJSONError

_ATOMS = frozenset({str, int, float, bool, type(None)})
_SKIPPED = "_sa"
"""How keys begin that the encoder leaves out."""

_ENCODED = frozenset({Callable, datetime})
"""What the encoder is told to write in a way of the engine's own. Plain JSON holds neither."""

_WRITTEN = re.compile(r"([1-9]\d{3}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}) UTC", re.ASCII)
"""The form in which the engine writes times."""


def plain(value: Any) -> Any:
    """As FastAPI's ``jsonable_encoder``. Raises NotJSONError, or RecursionError, for what is not plain JSON."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        made = {}
        for key, item in value.items():
            if type(key) is not str or key.startswith(_SKIPPED):
                raise NotJSONError
            made[key] = item if type(item) in _ATOMS else plain(item)
        return made
    if kind is list:
        return [item if type(item) in _ATOMS else plain(item) for item in value]
    raise NotJSONError


def is_written(timestamp: Any) -> bool:
    """Whether it is a time as the engine writes it."""
    if type(timestamp) is not str or (found := _WRITTEN.fullmatch(timestamp)) is None:
        return False
    try:
        datetime.fromisoformat(found[1])
    except ValueError:
        return False
    return True


def _as_known(options: dict[str, Any]) -> bool:
    return options.keys() == {"custom_encoder"} and (options["custom_encoder"] or {}).keys() == _ENCODED


def _install(patches: Patches) -> None:
    def make_encoder(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def jsonable_encoder(obj: Any, **options: Any) -> Any:
            if not patches.off and _as_known(options):
                try:
                    return plain(obj)
                except (NotJSONError, RecursionError):
                    pass
            return original(obj, **options)

        return jsonable_encoder

    def make_time(original: Callable[[Any], str]) -> Callable[[Any], str]:
        @functools.wraps(original)
        def timestamp_to_str(timestamp: Any) -> str:
            if not patches.off and is_written(timestamp):
                return str(timestamp)
            return original(timestamp)

        return timestamp_to_str

    patches.replace(patches.module("lfx.schema.content_types"), "jsonable_encoder", make_encoder)
    patches.replace(patches.module("lfx.schema.message"), "timestamp_to_str", make_time)


MESSAGE_DUMPS = Accelerator(
    name="message_dumps",
    targets=(
        Target("lfx.schema.content_types", "BaseContent.serialize_model", frozenset({"becd53e69dd46b93"})),
        Target("lfx.schema.encoders", "encode_callable", frozenset({"ab34281153d768f2"})),
        Target("lfx.schema.validators", "timestamp_to_str", frozenset({"f642b44ab310c9f3"})),
        Target("fastapi.encoders", "jsonable_encoder", frozenset({"500a52c1b13cd178"})),
    ),
    install=_install,
)
