"""Files that components read: those stored in a flow, found in ``NAME.files`` by base name, and those an event brings.

Pure. A stored path is of the Langflow server the flow was made on (``<flow id>/report.pdf``); here it means the file of
that name beside the export. An event's files are absolute paths, or names in ``NAME.files``, and must lie below a
directory the engine was told to allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from runtime.engine.export import Export, Node, raw_nodes
from runtime.engine.inputs import RunInput, event_fault, nearest


def place_stored_files(data: Mapping[str, Any], files_dir: Path) -> None:
    """Point every stored path of a graph's JSON at the file of its name in ``files_dir``, where there is one.

    Changes ``data``. A path whose file is missing is emptied: the engine would refuse to load the flow over it, and
    what is missing has been told by then.
    """
    for node in raw_nodes(data):
        for field in _fields(node):
            if field.get("type") == "file" and field.get("file_path"):
                field["file_path"] = _placed(field["file_path"], files_dir)


def _fields(node: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    template = (node.get("data") or {}).get("node", {}).get("template") or {}
    return (field for field in template.values() if isinstance(field, dict))


def _placed(stored: Any, files_dir: Path) -> Any:
    if isinstance(stored, list):
        placed = [_placed(path, files_dir) for path in stored]
        return [path for path in placed if path]
    path = files_dir / PurePosixPath(str(stored).replace("\\", "/")).name
    return str(path) if path.is_file() else ""


def event_files(
    export: Export, inputs: RunInput, files_dir: Path, roots: tuple[Path, ...]
) -> dict[str, dict[str, Any]]:
    """The file fields to set for an event's files: ``{component id: {field: [paths]}}``.

    A list goes to the flow's one component that reads files. Raises EventFault naming path and component.
    """
    if not inputs.files:
        return {}
    readers = [node for node in export.nodes if _file_field(node) and node.type not in ("ChatInput", "ChatOutput")]
    readers = readers or [node for node in export.nodes if node.type == "ChatInput"]
    wanted = inputs.files if isinstance(inputs.files, Mapping) else _for_all(readers, inputs.files)
    found: dict[str, dict[str, Any]] = {}
    for name, paths in wanted.items():
        node = _component(export, readers, name)
        field = _file_field(node) or "files"
        checked = [str(_checked(path, node, files_dir, roots)) for path in paths]
        many = bool((node.template.get(field) or {}).get("list", True))
        if not many and len(checked) > 1:
            raise event_fault("file_refused", f"component {node.name!r} ({node.id}) takes one file, not {len(checked)}")
        found[node.id] = {field: checked if many else checked[0]}
    return found


def _for_all(readers: list[Node], paths: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    if not readers:
        raise event_fault("file_refused", "the event brings files, but no component of the flow reads files")
    if len(readers) > 1:
        ids = ", ".join(node.id for node in readers)
        raise event_fault(
            "file_refused", f"several components read files; say whose they are: files: {{<id>: ...}}; {ids}"
        )
    return {readers[0].id: paths}


def _component(export: Export, readers: list[Node], name: str) -> Node:
    for node in (*readers, *export.nodes):
        if name in (node.id, node.name) and _file_field(node):
            return node
    known = [node.id for node in readers] + [node.name for node in readers]
    raise event_fault(
        "file_refused", f"files: the flow has no component {name!r} that reads files{nearest(name, known)}"
    )


def _file_field(node: Node) -> str | None:
    shown = [name for name, field in node.fields if field.get("type") == "file"]
    return shown[0] if shown else None


def _checked(path: str, node: Node, files_dir: Path, roots: tuple[Path, ...]) -> Path:
    given = Path(path)
    where = f"component {node.name!r} ({node.id})"
    resolved = (given if given.is_absolute() else files_dir / given).resolve()
    allowed = [root.resolve() for root in (files_dir, *roots)]
    if not any(resolved.is_relative_to(root) for root in allowed):
        raise event_fault(
            "file_refused",
            f"the file {path} of {where} is outside the directories that events may name: "
            f"{', '.join(str(root) for root in allowed)}",
            component_id=node.id,
            component_name=node.name,
        )
    if not resolved.is_file():
        raise event_fault(
            "file_missing",
            f"the file {path} of {where} does not exist",
            component_id=node.id,
            component_name=node.name,
        )
    return resolved
