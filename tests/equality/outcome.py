"""What is compared of a run: outputs, components built, error, chat messages, requests to the model, files. Pure.

Both sides, the stock engine and ours, tell a run with the functions here. Knows nothing of either; what it is given has
the shape of the engine's graphs, messages and exceptions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Outcome = dict[str, Any]
"""``outputs``: by component and output; ``built``: ids; ``error``: the chain as [type, text]; ``messages``, in the
order in which they were stored; ``requests``: path, headers and body of each. ``exact``: the outputs in full, which are
the same on one side only. Strict JSON."""

_KEPT = ("text", "sender", "sender_name", "session_id", "files", "edit", "category")
"""What is compared of a message between both sides: its other properties are those of Langflow's database where it has
been through that, which also forgets that a message told of an error; its category stays."""
_RANDOM = frozenset({"id", "timestamp", "run_id", "duration", "flow_id"})
"""Keys whose values differ from run to run."""
_HEADERS = frozenset({"host", "content-length"})
"""Headers that differ with the stub's port, and with the length of what is random."""
_OWN = re.compile(r"/secret_key$|/langflow_extension_events/|/report-\d+/|\.log$|\.db(-\w+)?$")
"""Files of the processes' start, and those that runs are given."""
_MARK = re.compile(rb"county-[a-l]")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_INSTEAD = (
    (_UUID, "<uuid>"),
    (re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?( ?UTC|Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (re.compile(r"0x[0-9a-f]{6,}"), "<address>"),
    (re.compile(r"(127\.0\.0\.2):\d+"), r"\1:<port>"),
)


def of_graph(graph: Any, error: BaseException | None) -> Outcome:
    """What a graph holds after its run, and how it failed. ``graph`` is None where there was none yet."""
    built = [vertex for vertex in graph.vertices if vertex.built] if graph is not None else []
    exact = {v.id: {name: dump(value) for name, value in v.results.items()} for v in built if v.results}
    return {
        "outputs": {component: {name: _told(value) for name, value in of.items()} for component, of in exact.items()},
        "built": sorted(vertex.id for vertex in built),
        "error": list(_chain(error)),
        "exact": exact,
    }


def _chain(error: BaseException | None) -> Iterator[list[str]]:
    """An exception and its causes, from the outermost in, by type and text."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield [f"{type(error).__module__}.{type(error).__qualname__}", str(error)]
        error = error.__cause__ or error.__context__


def dump(value: Any) -> Any:
    """A component's value as JSON."""
    if hasattr(value, "model_dump"):
        return {"type": type(value).__name__, **value.model_dump()}
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return {"type": type(value).__name__, "rows": value.to_dict(orient="records")}
    if isinstance(value, list | tuple):
        return [dump(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): dump(item) for key, item in value.items()}
    if isinstance(value, str | int | float | bool | None):
        return value
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def of_messages(messages: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Stored messages, in their order."""
    return [{key: message.get(key) or None for key in _KEPT} for message in messages]


def _told(value: Any) -> Any:
    if isinstance(value, list):
        return [_told(item) for item in value]
    if isinstance(value, dict) and value.get("type") == "Message":
        return {key: value.get(key) or None for key in _KEPT}
    return value


def of_requests(requests: Iterable[Any], key: str) -> list[dict[str, Any]]:
    """The requests that came with a key."""
    return [
        {
            "path": seen.path,
            "headers": {name: value for name, value in seen.headers.items() if name not in _HEADERS},
            "body": seen.body,
        }
        for seen in requests
        if seen.key == key
    ]


def files(*roots: Path) -> dict[str, str]:
    """Every file below some folders, by its path, with the hash of its content, whichever run wrote it."""
    found = (path for root in roots for path in root.rglob("*") if path.is_file() and not _OWN.search(str(path)))
    return {str(path): hashlib.sha256(_MARK.sub(b"<run>", path.read_bytes())).hexdigest() for path in found}


def settled(outcome: Any, folder: Path) -> Any:
    """An outcome without what differs from run to run. ``folder`` is where the side's files lie."""
    words = json.dumps(outcome, default=str).replace(str(folder), "<folder>")
    for pattern, instead in _INSTEAD:
        words = pattern.sub(instead, words)
    told = _without_random(json.loads(words))
    requests = told.get("requests", [])
    for request in requests:
        if tools := request["body"].get("tools"):  # an agent's are in the order of a set
            tools.sort(key=lambda tool: json.dumps(tool, sort_keys=True))
    requests.sort(key=lambda request: json.dumps(request, sort_keys=True))  # agents of one layer ask at once
    return told


def _without_random(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "<random>" if k in _RANDOM and v is not None else _without_random(v) for k, v in value.items()}
    return [_without_random(item) for item in value] if isinstance(value, list) else value


def differences(want: Any, got: Any, where: str = "") -> Iterator[str]:
    """What is not equal, by its place."""
    if isinstance(want, dict) and isinstance(got, dict):
        for key in sorted(want.keys() | got.keys()):
            yield from differences(want.get(key, "<none>"), got.get(key, "<none>"), f"{where}.{key}")
    elif isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        for place, (one, other) in enumerate(zip(want, got, strict=True)):
            yield from differences(one, other, f"{where}[{place}]")
    elif want != got:
        yield f"{where}: {_short(want)} is {_short(got)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 400 else f"{text[:250]} ... {text[-140:]}"
