"""What commands print: JSON for machines, tables for people, one clear line for errors."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

FAILED = 1
"""Exit code: the thing asked about failed."""
USAGE = 2
"""Exit code: the command was used wrongly."""
UNREACHABLE = 3
"""Exit code: Redis cannot be reached."""


def say(text: str = "") -> None:
    """A line of the answer."""
    sys.stdout.write(f"{text}\n")


def note(text: str) -> None:
    """A line beside the answer: progress, a warning, an error."""
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def say_json(value: Any) -> None:
    """The answer as JSON: indented on a terminal, one line otherwise."""
    say(as_json(value, indent=2 if sys.stdout.isatty() else None))


def as_json(value: Any, *, indent: int | None = None) -> str:
    """JSON text. A pydantic model is its fields; a character that the terminal cannot show is escaped."""
    plain = (sys.stdout.encoding or "").lower().replace("-", "") not in ("utf8", "utf8sig")
    return json.dumps(value, ensure_ascii=plain, indent=indent, default=_model)


def _model(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


@contextmanager
def json_array() -> Iterator[Any]:
    """Print a JSON array item by item, so that what is known is out even if the rest takes long."""
    count = 0

    def add(item: Any) -> None:
        nonlocal count
        say(("[" if count == 0 else ",") + as_json(item))
        count += 1

    yield add
    say("]" if count else "[]")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str, wide: str | None = None) -> None:
    """A table: drawn on a terminal, else aligned columns that a text tool can cut.

    ``empty`` is said where there are no rows. ``wide`` is the column that is folded where the terminal is narrow, the
    last one unless told.
    """
    lines = [[printable("" if cell is None else str(cell)) for cell in row] for row in rows]
    if not lines:
        note(empty)
        return
    if sys.stdout.isatty():
        _draw(columns, lines, wide or columns[-1])
        return
    widths = [max(len(line[i]) for line in [list(columns), *lines]) for i in range(len(columns))]
    for line in [[c.upper() for c in columns], *lines]:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _draw(columns: Sequence[str], lines: list[list[str]], wide: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    gap = 2 if len(columns) < 8 else 1
    drawn = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for column in columns:
        drawn.add_column(column, overflow="fold", no_wrap=column != wide)
    for line in lines:
        drawn.add_row(*(Text(cell) for cell in line))
    widths = {c: max(len(c), *(len(line[i]) for line in lines)) for i, c in enumerate(columns)}
    least = sum(widths.values()) - widths[wide] + min(widths[wide], 20) + gap * len(columns)
    # Rather lines that the terminal wraps than an id of which a part is cut off.
    console = Console()
    console.width = max(console.width, least)
    console.print(drawn)


def printable(text: str) -> str:
    """The text on one line and without control characters: what a producer wrote must not steer the terminal."""
    return "".join(c if c.isprintable() else " " if c in "\n\t\r" else "\ufffd" for c in text)


def shorten(text: str, length: int = 100) -> str:
    """At most ``length`` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def when(ms: int | None) -> str:
    """A time in ms since the epoch, in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000)) if ms else ""


def age(seconds: float | None) -> str:
    """A duration in its largest fitting unit: ``3s``, ``12m``, ``5h``, ``2d``."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


@contextmanager
def progress(label: str, *, shown: bool) -> Iterator[Callable[[int], object]]:
    """A running count on stderr, for a person who waits. Yields what takes the number of things done since."""
    if not (shown and sys.stderr.isatty()):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda count: bar.advance(task, count)
