"""What the stub model says: it has an agent call each of its tools once, and then repeats what it was asked. Pure.

Of a long question it repeats the beginning and the marks of runs: a streamed answer costs time, word by word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.support.provider import Behaviour, Say, ToolCall

_REPEATED = 120
"""Characters."""
_MARK = re.compile(r"county-\w")
_VALUES: Mapping[str, Any] = {"integer": 3, "number": 2.5, "boolean": True, "null": None}


def answer(body: Mapping[str, Any]) -> Behaviour:
    """By the request alone, so that it is the same for the same request, whoever asks when."""
    tools = sorted(body.get("tools") or [], key=lambda tool: str(tool["function"]["name"]))
    messages = body.get("messages") or []
    called = sum(1 for message in messages if message.get("role") == "tool")
    said = next((_text(m.get("content")) for m in reversed(messages) if m.get("role") == "user"), "")
    if called >= len(tools):
        return Say(" ".join(["echo:", said[:_REPEATED], *_MARK.findall(said[_REPEATED:])]))
    function = tools[called]["function"]
    schema = function.get("parameters") or {}
    arguments = {name: _value(field, said) for name, field in (schema.get("properties") or {}).items()}
    return ToolCall(function["name"], arguments, f"call_{called}")


def _text(content: Any) -> str:
    """What a message says; one with an image has parts."""
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    return " ".join(str(part.get("text", "")) for part in parts)


def _value(field: Mapping[str, Any], said: str) -> Any:
    """A value that a field takes."""
    if "enum" in field:
        return field["enum"][0]
    if kinds := field.get("anyOf"):
        return _value(kinds[0], said)
    kind = field.get("type")
    if kind == "array":
        return [_value(field.get("items") or {"type": "string"}, said)]
    if kind == "object":
        return {name: _value(inner, said) for name, inner in (field.get("properties") or {}).items()}
    return _VALUES.get(str(kind), said[:80])
