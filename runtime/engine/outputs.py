"""A finished graph's outputs as a RunResult. Reads the vertices' results, which hold the components' own objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lfx.schema.data import Data
from lfx.schema.message import Message

from runtime.engine.plain import is_table, plain, table
from shared_models.result import Output, OutputKind, RunResult

INPUT_COMPONENTS = frozenset({"ChatInput", "TextInput", "Webhook"})


def read_result(
    graph: Any,
    *,
    session: str | None = None,
    order: Mapping[str, int],
    before: Mapping[str, Sequence[Output]] = MappingProxyType({}),
) -> RunResult:
    """Every output of a finished graph in the file's ``order``, and the primary text.

    ``before``: outputs by component of a run that waited, from before; they count where a component did not run again.

    Output components that were built count; where the flow has none, the components that feed no other. A branch that
    was not taken is absent, and an input component is never an output.
    """
    outputs = [
        output
        for vertex in _chosen(graph, order, before)
        for output in (_outputs(vertex, session) if _ran(vertex) else before[vertex.id])
    ]
    messages = (o.text for o in outputs if o.kind is OutputKind.MESSAGE and o.text is not None)
    text = next(messages, None)
    if text is None:
        text = next((o.text for o in outputs if o.text is not None and o.kind is not OutputKind.ERROR), None)
    return RunResult(text=text, outputs=outputs)


def read_ended(graph: Any, *, session: str | None) -> dict[str, list[Output]]:
    """The outputs so far of a graph that pauses, by component: of those that may count at its end."""
    ends = (v for v in graph.vertices if _ran(v) and (v.is_output or not graph.successor_map.get(v.id)))
    return {vertex.id: list(_outputs(vertex, session)) for vertex in ends}


def _chosen(graph: Any, order: Mapping[str, int], before: Mapping[str, Sequence[Output]]) -> list[Any]:
    ran = [v for v in graph.vertices if _ran(v) or v.id in before]
    built = [v for v in ran if v.data.get("type") not in INPUT_COMPONENTS]
    chosen = [v for v in built if v.is_output] or [v for v in built if not graph.successor_map.get(v.id)]
    return sorted(chosen, key=lambda vertex: order.get(vertex.id, len(order)))


def _ran(vertex: Any) -> bool:
    return bool(vertex.built and vertex.result is not None and vertex.results)


def _outputs(vertex: Any, session: str | None) -> Iterator[Output]:
    for name, value in vertex.results.items():
        if value is None:
            continue
        kind, text, data = read_value(value, session=session)
        yield Output(
            id=vertex.id,
            name=str(vertex.display_name),
            type=str(vertex.data.get("type") or ""),
            output=str(name),
            kind=kind,
            text=text,
            data=data,
        )


def read_value(value: Any, *, session: str | None = None) -> tuple[OutputKind, str | None, Any]:
    """One component value as (kind, text, data)."""
    if isinstance(value, Message):
        kind = OutputKind.ERROR if is_error(value) else OutputKind.MESSAGE
        return kind, _message_text(value), _message(value, session)
    if isinstance(value, str):
        return OutputKind.MESSAGE, plain(value), {}
    if is_table(value):
        return OutputKind.TABLE, None, table(value)
    if isinstance(value, Data):
        return OutputKind.DATA, _data_text(value), plain(value.data)
    data = [_item(item) for item in value] if isinstance(value, list | tuple) else plain(value)
    if isinstance(data, list | dict):
        return OutputKind.LIST if isinstance(data, list) else OutputKind.DATA, None, data
    return OutputKind.DATA, None if data is None else str(data), {"value": data}


def is_error(message: Any) -> bool:
    """Whether the engine marks a message as an error text rather than an answer."""
    return bool(getattr(message, "error", False)) or getattr(message, "category", None) == "error"


def _item(value: Any) -> Any:
    if isinstance(value, Message):
        return {**_message(value, None), "text": _message_text(value)}
    if isinstance(value, Data):
        return plain(value.data)
    return plain(value)


def _message_text(message: Any) -> str | None:
    text = message.text
    return plain(text) if isinstance(text, str) else None


def _data_text(data: Any) -> str | None:
    text = data.data.get(data.text_key) if isinstance(data.data, Mapping) else None
    return plain(text) if isinstance(text, str) else None


def _message(message: Any, session: str | None) -> dict[str, Any]:
    usage = getattr(message.properties, "usage", None)
    return {
        "sender": plain(message.sender),
        "sender_name": plain(message.sender_name),
        "session_id": session or None,
        "files": [_file(file) for file in message.files or []],
        "usage": plain(usage),
    }


def _file(file: Any) -> Any:
    path = getattr(file, "path", file)
    return str(path) if isinstance(path, str) else plain(path)
