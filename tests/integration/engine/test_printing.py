"""Tables written out by several runs at once: how pandas writes them is a matter of the whole process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pandas as pd
import pytest
import structlog
from pandas.errors import OptionError

from runtime.engine import printing
from runtime.engine.accelerators.base import Target
from tests.integration.engine.conftest import Runner
from tests.support import flows

LONG = "What a worker writes into a cell is longer than the fifty characters after which pandas cuts it off."
DEADLINE = 10.0

pytestmark = pytest.mark.usefixtures("engine")


class Slow:
    """A cell whose text takes as long as ``wait``, and says what that gives."""

    def __init__(self, wait: Callable[[], Any]) -> None:
        self._wait = wait

    def __str__(self) -> str:
        return f"<{self._wait()}>"

    __repr__ = __str__


class Writing:
    """A table whose cell is being written from ``begun`` until ``end``."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()
        self.table = pd.DataFrame({"slow": [Slow(self._wait)]})

    def _wait(self) -> bool:
        self.begun.set()
        return self.end.wait(DEADLINE)


@pytest.mark.parametrize("first", ["table", "frame"])
@pytest.mark.parametrize("second", ["table", "frame", "series"])
def test_one_that_is_written_beside_another_is_as_if_it_were_alone(first: str, second: str) -> None:
    from lfx.schema.dataframe import Table

    kinds = {"table": Table, "frame": pd.DataFrame, "series": lambda rows: pd.Series([row["long"] for row in rows])}
    beside = kinds[second]([{"long": LONG}])
    alone = str(beside)
    with ThreadPoolExecutor(1) as pool:
        slow = kinds[first]([{"slow": Slow(lambda: pool.submit(str, beside).result(DEADLINE) == alone), "long": LONG}])
        text = str(slow)
    assert "<True>" in text
    assert ("cuts it off" in text) is (first == "table")
    assert pd.get_option("display.max_colwidth") == 50


async def test_one_that_takes_long_holds_no_other_up() -> None:
    writing = Writing()
    first = asyncio.create_task(asyncio.to_thread(writing.table.to_string))
    try:
        assert await asyncio.to_thread(writing.begun.wait, DEADLINE)
        for write in (repr, pd.DataFrame.to_string, pd.DataFrame.to_html):  # on the loop itself
            assert "7" in write(pd.DataFrame({"a": [7]}))
        assert not first.done()
    finally:
        writing.end.set()
    assert "<True>" in await first


def test_a_cell_may_wait_for_another_threads_table() -> None:
    with ThreadPoolExecutor(1) as pool:
        lazy = Slow(lambda: len(pool.submit(repr, pd.DataFrame({"b": [1]})).result(DEADLINE)))
        assert "<9>" in repr(pd.DataFrame({"a": [lazy]}))


def test_a_process_that_is_forked_meanwhile_writes_its_own() -> None:
    writing = Writing()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(repr, writing.table)
        try:
            assert writing.begun.wait(DEADLINE)
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(int(DEADLINE))
                try:
                    os._exit(0 if "7" in repr(pd.DataFrame({"a": [7]})) else 1)
                finally:
                    os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            writing.end.set()
        assert "<True>" in first.result(DEADLINE)


# --- options --------------------------------------------------------------------------------------------------------


def test_a_block_holds_for_its_context_alone() -> None:
    def elsewhere() -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(pd.get_option, "display.max_rows").result(DEADLINE)

    before = pd.get_option("display.max_rows")
    with pd.option_context("display.max_rows", 7, "max_colwidth", 9):
        with pd.option_context("display.max_rows", 8):
            assert (pd.get_option("display.max_rows"), pd.options.display.max_rows, elsewhere()) == (8, 8, before)
            assert copy_context().run(pd.get_option, "display.max_rows") == 8  # as asyncio.to_thread has it
            pd.set_option("display.max_rows", 9, "display.max_colwidth", 11)
            assert pd.get_option("display.max_rows") == 9
        assert (pd.get_option("display.max_rows"), pd.get_option("display.max_colwidth")) == (7, 11)
    assert pd.get_option("display.max_rows") == elsewhere() == before
    assert pd.get_option("display.max_colwidth") == 50


def test_a_block_may_be_entered_again_and_by_several_at_once() -> None:
    block = pd.option_context("display.max_rows", 7)

    @block
    def depth(left: int) -> list[Any]:
        return [pd.get_option("display.max_rows"), *(depth(left - 1) if left else [])]

    before = pd.get_option("display.max_rows")
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(depth, [3] * 20)) == [[7] * 4] * 20
    assert pd.get_option("display.max_rows") == before


def test_a_block_that_cannot_be_entered_changes_nothing() -> None:
    before = pd.get_option("display.max_rows")
    with (
        pytest.raises(ValueError, match="nonnegative"),
        pd.option_context("display.max_rows", 7, "display.max_colwidth", -1),
    ):
        pass
    with pytest.raises(OptionError), pd.option_context("display.max_rows", 7, "no.such", 1):
        pass
    assert pd.get_option("display.max_rows") == before


def test_what_is_more_than_writing_is_the_processs_as_it_was() -> None:
    before = pd.get_option("mode.chained_assignment")
    with pd.option_context("display.max_rows", 7, "mode.chained_assignment", "raise"), ThreadPoolExecutor(1) as pool:
        assert pd.get_option("display.max_rows") == 7
        assert pool.submit(pd.get_option, "mode.chained_assignment").result(DEADLINE) == "raise"
    assert pd.get_option("mode.chained_assignment") == before


SETS = """
def work(self) -> Message:
    import pandas as pd
    before = pd.get_option("display.max_columns")
    pd.set_option("display.max_columns", int(self.text))
    return Message(text=f"{before} {pd.get_option('display.max_columns')}")
"""
READS = """
def work(self) -> Message:
    import pandas as pd
    return Message(text=f"{self.text} {pd.options.display.max_columns}")
"""


async def test_what_a_component_sets_its_run_has_and_no_other(run: Runner) -> None:
    flow = flows.through(SETS, output=None)
    reads = flow.custom(flows.component(READS, name="Reads"), "Reads-it")
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect("Custom-it", "out", reads, "text")
    flow.connect(reads, "out", out, "input_value")
    before = pd.get_option("display.max_columns")
    said = await asyncio.gather(*(run.text(flow, str(n)) for n in range(5, 9)))
    assert said == [f"{before} {n} {n}" for n in range(5, 9)]
    assert pd.get_option("display.max_columns") == before


def test_another_pandas_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[bool] = []
    monkeypatch.setattr(printing, "_put", lambda: put.append(True))
    printing.install()
    assert put.pop()
    monkeypatch.setattr(printing, "_TARGETS", (Target("pandas._config.config", "_gone", frozenset({"0"})),))
    with structlog.testing.capture_logs() as logs:
        printing.install()
    assert not put
    assert [(line["event"], "_gone" in line["reason"]) for line in logs] == [("tables.options_shared", True)]
