"""YAML for people who write specs: plain values, and the line of each.

The plain values are those of YAML 1.2's core schema: ``off``, ``yes`` and ``12:30`` are the text they look like.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from runtime.errors import RouteInvalid

MAX_SPEC = 256 * 1024
"""Bytes of a spec file."""

Where = tuple[str | int, ...]


@dataclass
class Document:
    """A part of a YAML file as plain values.

    ``lines`` has the line of each key and item, ``texts`` each scalar as it was written.
    """

    value: dict[str, Any] = field(default_factory=dict)
    lines: dict[Where, int] = field(default_factory=dict)
    texts: dict[Where, str] = field(default_factory=dict)

    def line(self, where: Where) -> int:
        """The line of what stands at ``where``, or of the nearest thing around it."""
        return next((self.lines[where[:n]] for n in range(len(where), -1, -1) if where[:n] in self.lines), 1)

    def part(self, *where: str | int) -> Document:
        """What stands at ``where``, as a document of its own; empty where there is nothing."""
        value: Any = self.value
        for step in where:
            value = value[step]
        size = len(where)
        lines = {at[size:]: line for at, line in self.lines.items() if at[:size] == where}
        texts = {at[size:]: text for at, text in self.texts.items() if at[:size] == where}
        return Document({} if value is None else value, lines, texts)


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # the stubs give it no types
            raise yaml.MarkedYAMLError(
                problem="references (*name) are not supported; write the value out", problem_mark=mark
            )
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"0|[-+]?[1-9][0-9]*", "-+0123456789"),
    ("float", r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-+0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


def read_yaml(raw: bytes) -> Document:
    """The mapping that a YAML file holds; empty for an empty file. Raises RouteInvalid that names the line."""
    if len(raw) > MAX_SPEC:
        raise RouteInvalid(f"has {len(raw):,} bytes; a route spec may have at most {MAX_SPEC:,}")
    try:
        node = yaml.compose(raw.decode("utf-8-sig"), Loader=_Loader)
    except UnicodeDecodeError as error:
        raise RouteInvalid(f"is not UTF-8 (byte {error.start:,}); save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        raise RouteInvalid(_syntax(error)) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise RouteInvalid(f"is not YAML: {str(error).splitlines()[0]}") from error
    document = Document()
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
        return document
    if not isinstance(node, yaml.MappingNode):
        raise RouteInvalid(f"line {node.start_mark.line + 1}: a route spec is a mapping of keys to values")
    document.value = _plain(node, (), document)
    return document


def _plain(node: yaml.Node, at: Where, document: Document) -> Any:
    document.lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, at, document)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*at, place), document) for place, item in enumerate(node.value)]
    document.texts[at] = node.value
    return _scalar(node)


def _mapping(node: yaml.MappingNode, at: Where, document: Document) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise RouteInvalid(f"line {line}: a key has to be a word")
        key = key_node.value
        if key in made:
            raise RouteInvalid(
                f"line {line}: the key {key!r} is given twice (before in line {document.lines[(*at, key)]})"
            )
        document.lines[(*at, key)] = line
        made[key] = _plain(value_node, (*at, key), document)
    return made


_READERS: dict[str, Callable[[str], Any]] = {
    "bool": lambda text: text.lower() == "true",
    "int": int,
    "float": float,
    "null": lambda _: None,
}


def _scalar(node: yaml.Node) -> Any:
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind == "str":
        return node.value
    try:
        return _READERS[kind](node.value)
    except (KeyError, ValueError) as error:
        raise RouteInvalid(f"line {node.start_mark.line + 1}: {node.value[:40]!r} cannot be read as {kind}") from error


def _syntax(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = error.problem or error.context or "not YAML"
    if "'\\t'" in problem:
        problem = "a tab; YAML is indented with spaces"
    elif "mapping values are not allowed" in problem:
        problem += " (put a value that holds a colon in quotes)"
    return where + problem
