"""Tables written out by several runs at once: how pandas writes them is a matter of the whole process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pandas as pd
import pytest

LONG = "What a worker writes into a cell is longer than the fifty characters after which pandas cuts it off."
MOMENT = 0.2
"""Seconds in which another thread would get in, if it could."""


class Slow:
    """A cell that is being written when another table's turn comes."""

    def __init__(self, other: Any) -> None:
        self._other = other

    def __str__(self) -> str:
        self._other.begin.set()
        self._other.done.wait(MOMENT)
        return "slow"


class Other:
    """Another thread's table, written while the first is."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.begin, self.done = threading.Event(), threading.Event()

    def write(self) -> str:
        """Its text, from when the first has begun."""
        assert self.begin.wait(10)
        text = str(self._table)
        self.done.set()
        return text


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("first", ["table", "frame"])
@pytest.mark.parametrize("second", ["table", "frame", "series"])
def test_one_that_is_written_beside_another_is_as_if_it_were_alone(first: str, second: str) -> None:
    from lfx.schema.dataframe import Table

    kinds = {"table": Table, "frame": pd.DataFrame, "series": lambda rows: pd.Series([row["long"] for row in rows])}
    beside = kinds[second]([{"long": LONG}])
    alone = str(beside)
    other = Other(beside)
    slow = kinds[first]([{"slow": Slow(other), "long": LONG}])
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(other.write)
        text = str(slow)
        assert writing.result(10) == alone
    assert ("cuts it off" in text) is (first == "table")
    assert pd.get_option("display.max_colwidth") == 50
