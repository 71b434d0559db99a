"""Faults that users of other systems have reported, in rows of three tables: each has a test that is named after it.

B: concurrency, isolation, memory and time. D: consumers of Redis streams that run AI jobs. T: stream consumers and task
queues. A test's name holds the rows that it answers: ``test_d4_t5_...``.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS = {
    *(f"b{n}" for n in (1, 2, 3, 5, 6, 7, 8, 11, 14, 15)),
    *(f"d{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 15, 16)),
    *(f"t{n}" for n in (1, 2, 3, 4, 5, 6, 8, 10, 12, 13, 15, 17, 18, 19, 22, 23, 24, 25, 28)),
    *(f"t{n}" for n in (29, 31, 32, 33, 34, 36, 37, 38, 39, 40, 41, 43, 45, 46, 47, 48)),
}


def rows_of(name: str) -> list[str]:
    """The rows in the name of a test, which come first in it."""
    found = re.match(r"test_((?:[bdt]\d+_)+)", name)
    return found[1].removesuffix("_").split("_") if found else []


@pytest.mark.parametrize(
    ("name", "rows"), [("test_d4_t5_they_do_not_age", ["d4", "t5"]), ("test_the_t5", []), ("test_d4", [])]
)
def test_rows_are_read_from_a_name(name: str, rows: list[str]) -> None:
    assert rows_of(name) == rows


def test_each_row_has_its_test() -> None:
    named = {
        row
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for row in rows_of(node.name)
    }
    assert sorted(ROWS - named) == []
