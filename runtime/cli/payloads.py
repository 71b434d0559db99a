"""What an event's payload is made of: the text, the JSON object or the file that the user gave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import typer

STDIN = "-"


def parse(text: str, *, where: str) -> dict[str, Any]:
    """The payload that a text means: a JSON object is the payload, anything else is the text input.

    A text that begins a JSON object and does not parse is refused, as a worker would refuse it.
    """
    if not text.lstrip().startswith("{"):
        return {"input_value": text}
    return parse_object(text, where=where)


def parse_object(text: str, *, where: str) -> dict[str, Any]:
    """A JSON object; ``typer.BadParameter`` saying ``where`` and what is wrong otherwise."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise typer.BadParameter(f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{where} must be a JSON object, not {_kind(value)}; a text is given with --input")
    return value


def single(source: str | None, text: str | None, payload: str | None, file: str | None) -> dict[str, Any]:
    """The one payload that the options give. Exactly one of them must be there."""
    given = [x is not None for x in (text, payload, file, source)]
    if sum(given) != 1:
        raise typer.BadParameter("give the event with one of --input TEXT, --payload JSON, --file FILE or - (stdin)")
    if text is not None:
        return {"input_value": text}
    if payload is not None:
        return parse_object(payload, where="--payload")
    path = checked_source(source) or file or STDIN
    with opened(path) as stream:
        read = stream.read()
    return parse(read if read.lstrip().startswith("{") else read.removesuffix("\n"), where=_name(path))


def lines(path: str) -> Iterator[dict[str, Any]]:
    """A payload for each line of a file that is not empty."""
    with opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield parse(line.rstrip("\r\n"), where=f"{_name(path)}, line {number},")


def checked_source(source: str | None) -> str | None:
    """The positional argument after the target, which can only be ``-``."""
    if source not in (None, STDIN):
        raise typer.BadParameter(f"{source!r} is neither an option nor -; a text is given with --input {source!r}")
    return source


@contextmanager
def opened(path: str) -> Iterator[IO[str]]:
    """A file, or stdin for ``-``, as UTF-8."""
    try:
        # Opened apart from its use: only a file that cannot be opened is the caller's mistake.
        stream = open(0 if path == STDIN else Path(path), encoding="utf-8-sig", closefd=path != STDIN)  # noqa: SIM115  closed below
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from error
    try:
        with stream:
            yield stream
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{_name(path)} is not UTF-8 text: {error}") from error


def _name(path: str) -> str:
    return "stdin" if path == STDIN else path


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {list: "an array", str: "a string", bool: "true or false"}.get(type(value), "a number")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
