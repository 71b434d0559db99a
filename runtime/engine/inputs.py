"""What an event's payload gives a flow. Pure; loads nothing of Langflow.

``input_value`` is the text input; ``session_id``, ``tweaks``, ``variables``, ``files`` and ``inputs`` are control keys;
a payload with none of ``input_value`` and ``inputs`` is given as its JSON text. A flow with a Webhook component gets
the whole payload as the webhook's data: its keys are the producer's own, and control comes from entry fields only.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.engine.base import RunRequest
from runtime.engine.export import Export, Node
from runtime.errors import EventFault
from shared_models.dead_letter import ErrorInfo

INPUT_TYPES = ("ChatInput", "TextInput")
CONTROL_KEYS = frozenset({"session_id", "tweaks", "variables", "files", "inputs"})


@dataclass(frozen=True, slots=True)
class RunInput:
    """An event's payload, read for one flow.

    ``texts`` maps an input component's id to its text, ``webhooks`` a Webhook's id to its JSON text. ``session`` is
    None where the event named none. ``files`` are as the payload gave them: not yet checked.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    webhooks: Mapping[str, str] = field(default_factory=dict)
    session: str | None = None
    tweaks: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] | Mapping[str, tuple[str, ...]] = ()


def read_inputs(export: Export, request: RunRequest) -> RunInput:
    """Turn the payload into inputs. Raises EventFault naming what is wrong with it."""
    payload = request.payload
    if webhooks := export.of_type("Webhook"):
        body = json.dumps(payload, ensure_ascii=False)
        return RunInput(webhooks={node.id: body for node in webhooks}, session=request.session_id)
    session = request.session_id
    if session is None and payload.get("session_id") is not None:
        session = _text(payload["session_id"], "session_id")
    return RunInput(
        texts=_texts(export, request),
        session=session or None,
        tweaks=_mapping(payload.get("tweaks"), "tweaks"),
        files=_files(payload.get("files")),
    )


def _texts(export: Export, request: RunRequest) -> dict[str, str]:
    payload = request.payload
    addressed = _mapping(payload.get("inputs"), "inputs")
    texts: dict[str, str] = {}
    if request.input_text is not None or "input_value" in payload or not addressed:
        text = request.input_text if request.input_text is not None else _input_text(payload)
        texts.update((node.id, text) for node in export.of_type(*INPUT_TYPES))
    for name, value in addressed.items():
        texts[_find_input(export, str(name)).id] = _text(value, f"inputs.{name}")
    return texts


def _input_text(payload: Mapping[str, Any]) -> str:
    if "input_value" in payload:
        value = payload["input_value"]
        return "" if value is None else _text(value, "input_value")
    return json.dumps({k: v for k, v in payload.items() if k not in CONTROL_KEYS}, ensure_ascii=False)


def _find_input(export: Export, name: str) -> Node:
    nodes = export.of_type(*INPUT_TYPES)
    if exact := next((node for node in nodes if node.id == name), None):
        return exact
    named = [node for node in nodes if node.name == name]
    if len(named) == 1:
        return named[0]
    if named:
        ids = ", ".join(node.id for node in named)
        raise event_fault("input_ambiguous", f"inputs: {name!r} is the name of several inputs; use an id: {ids}")
    known = [node.id for node in nodes] + [node.name for node in nodes]
    raise event_fault("input_unknown", f"inputs: the flow has no input {name!r}{nearest(name, known)}")


def _text(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int | float):
        return str(value)
    raise event_fault("payload_invalid", f"{where}: expected text, found {type(value).__name__}")


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise event_fault("payload_invalid", f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


def _files(value: Any) -> tuple[str, ...] | Mapping[str, tuple[str, ...]]:
    if isinstance(value, Mapping):
        return {str(component): _paths(paths, f"files.{component}") for component, paths in value.items()}
    return _paths(value, "files")


def _paths(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
        raise event_fault("payload_invalid", f"{where}: expected a path or a list of paths")
    return tuple(paths)


def nearest(name: str, known: list[str]) -> str:
    """A hint for a message: the nearest known name, or all of a few."""
    if near := difflib.get_close_matches(name, known, n=1):
        return f"; did you mean {near[0]!r}?"
    return f"; it has {', '.join(sorted(set(known))[:10])}" if known else ""


def event_fault(code: str, message: str, **more: Any) -> EventFault:
    """An EventFault with the given code and message."""
    return EventFault(ErrorInfo(code=code, message=message, **more))
