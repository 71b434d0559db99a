"""A flow file's bytes, read: one export, or several. Judges the document; its components are the engine's matter."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from runtime.errors import FlowInvalid

MAX_FILE = 64 * 1024 * 1024
"""Bytes of a flow file, or of all that a zip holds."""


@dataclass(frozen=True, slots=True)
class FlowDocument:
    """One flow of a file.

    ``title`` names it where the file holds several, None where the file's own name does. ``version`` is the SHA-256 of
    the file, and for one of several that of the flow's own JSON, so that the others need not load anew. ``fault`` says
    why it cannot be used.
    """

    title: str | None
    version: str
    export: Mapping[str, Any]
    fault: str | None = None


def read_flows(raw: bytes, *, zipped: bool = False) -> tuple[FlowDocument, ...]:
    """The flows of a file. Raises FlowInvalid, which says what the file is instead and where it goes wrong."""
    if len(raw) > MAX_FILE:
        raise FlowInvalid(f"has {len(raw):,} bytes; a flow file may have at most {MAX_FILE:,}")
    return tuple(_unzipped(raw) if zipped else _read(raw))


def _read(raw: bytes, *, in_project: bool = False) -> Iterator[FlowDocument]:
    value = _parsed(raw)
    several = value.get("flows") if isinstance(value, dict) and "data" not in value else value
    if isinstance(several, list):
        if not several:
            raise FlowInvalid("is a project export without flows")
        yield from (_member(flow, place) for place, flow in enumerate(several, 1) if not _is_component(flow))
    elif isinstance(value, dict):
        if _is_component(value):
            if in_project:
                return  # projects carry the components that were saved for reuse along
            raise FlowInvalid("is a saved component, not a flow; use it in a flow and export that")
        export, fault = _checked(value)
        if fault:
            raise FlowInvalid(fault)
        yield FlowDocument(None, hashlib.sha256(raw).hexdigest(), export)
    else:
        raise FlowInvalid(f"is not a Langflow export: it holds {_kind(value)}, not an object")


def _member(flow: Any, place: int) -> FlowDocument:
    name = flow.get("name") if isinstance(flow, dict) else None
    title = name if isinstance(name, str) else ""
    version = hashlib.sha256(json.dumps(flow, sort_keys=True).encode()).hexdigest()
    if not isinstance(flow, dict):
        return FlowDocument(title, version, {}, f"flow {place} is {_kind(flow)}, not an object")
    export, fault = _checked(flow)
    return FlowDocument(title, version, export, f"flow {place} ({title or 'unnamed'}) {fault}" if fault else None)


def _checked(flow: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The export with its graph under ``data``, and what is wrong with it."""
    bare = "data" not in flow and "nodes" in flow
    graph = flow if bare else flow.get("data")
    if not isinstance(graph, dict) or not isinstance(graph.get("nodes"), list):
        return flow, (
            "is not a Langflow export: it has no list data.nodes; in Langflow, use Share, Export, or export its project"
        )
    if not isinstance(graph.get("edges", []), list):
        return flow, "is not a Langflow export: data.edges is not a list"
    if any(not isinstance(item, dict) for item in [*graph["nodes"], *graph.get("edges", [])]):
        return flow, "is not a Langflow export: data.nodes and data.edges hold something other than objects"
    if not graph["nodes"]:
        return flow, "has no components"
    _join_code(graph["nodes"])
    if not bare:
        return flow, None
    rest = {name: item for name, item in flow.items() if name not in {"nodes", "edges", "viewport"}}
    return {**rest, "data": {"nodes": graph["nodes"], "edges": graph.get("edges", [])}}, None


def _join_code(nodes: list[Any]) -> None:
    """Make each component's source one string again: the server's download endpoint writes it as a list of lines."""
    for node in nodes:
        data = node.get("data") if isinstance(node, dict) else None
        body = data.get("node") if isinstance(data, dict) else None
        if not isinstance(body, dict):
            continue
        template = body.get("template")
        for field in template.values() if isinstance(template, dict) else ():
            value = field.get("value") if isinstance(field, dict) and field.get("type") == "code" else None
            if isinstance(value, list) and all(isinstance(line, str) for line in value):
                field["value"] = "\n".join(value)
        inner = body.get("flow")  # a group
        inner = inner.get("data") if isinstance(inner, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("nodes"), list):
            _join_code(inner["nodes"])


def _is_component(flow: Any) -> bool:
    """Whether an export is a component saved for reuse."""
    return isinstance(flow, dict) and flow.get("is_component") is True


def _parsed(raw: bytes) -> Any:
    if not raw.strip():
        raise FlowInvalid("is empty")
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        wide = raw[:2] in {b"\xff\xfe", b"\xfe\xff"}
        what = "is UTF-16" if wide else f"is not UTF-8 (byte {error.start:,})"
        raise FlowInvalid(f"{what}; save it as UTF-8") from error
    except json.JSONDecodeError as error:
        end = " (the end: only a part of it is there)" if error.pos >= len(error.doc.rstrip()) else ""
        where = f"line {error.lineno}, column {error.colno}{end}"
        raise FlowInvalid(f"is not JSON: {error.msg} at {where}") from error
    except ValueError as error:
        raise FlowInvalid(f"is not JSON: {str(error).partition(';')[0]}") from error
    except RecursionError as error:
        raise FlowInvalid("is not a Langflow export: it is nested too deep") from error


def _unzipped(raw: bytes) -> Iterator[FlowDocument]:
    """The flows of a zipped project, each in a JSON file of its own."""
    count = 0
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = [info for info in archive.infolist() if _is_flow_name(info.filename)]
            if sum(info.file_size for info in members) > MAX_FILE:
                raise FlowInvalid(f"holds more than {MAX_FILE:,} bytes")
            for info in members:
                for found in _zip_member(info.filename, archive.read(info)):
                    count += 1
                    yield found
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, OSError) as error:
        raise FlowInvalid(f"is not a zip that can be read: {error or type(error).__name__}") from error
    if not count:
        raise FlowInvalid("is a zip without flows (JSON files)")


def _zip_member(name: str, raw: bytes) -> Iterator[FlowDocument]:
    stem = PurePath(name).stem
    try:
        for found in _read(raw, in_project=True):
            title = found.title or found.export.get("name")
            yield FlowDocument(
                title if isinstance(title, str) and title else stem, found.version, found.export, found.fault
            )
    except FlowInvalid as error:
        yield FlowDocument(stem, hashlib.sha256(raw).hexdigest(), {}, f"{name} {error.message}")


def _is_flow_name(name: str) -> bool:
    parts = PurePath(name).parts
    return name.lower().endswith(".json") and not any(part.startswith((".", "__MACOSX")) for part in parts)


def _kind(value: Any) -> str:
    return {str: "a string", bool: "true or false", type(None): "null", list: "a list"}.get(type(value), "a number")
