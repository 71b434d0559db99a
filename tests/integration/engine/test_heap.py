"""What is left of a graph when its run has ended."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.engine.conftest import Runner
from tests.support import flows

MADE: list[weakref.ref[Any]] = []
"""The components of these tests."""

LATER: asyncio.Queue[Any] = asyncio.Queue()
"""What a component tells after its run."""

PLAIN = """
    async def work(self) -> Message:
        test_heap.MADE.append(weakref.ref(self))
        return Message(text="done")
    """

LIVES_ON = """
    async def work(self) -> Message:
        asyncio.get_running_loop().call_later(0.05, self.tell)
        return Message(text="done")

    def tell(self) -> None:
        try:
            told = (self._vertex.id, self.graph.get_vertex("ChatInput-in").display_name)
        except Exception as error:
            told = error
        test_heap.LATER.put_nowait(told)
    """
IMPORTS = "import asyncio\nimport weakref\nfrom tests.integration.engine import test_heap"


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    MADE.clear()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_a_component_that_nobody_has_is_gone_without_the_collector(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = flows.through(PLAIN, imports=IMPORTS)
    assert await run.text(flow, "a") == "done"
    monkeypatch.setattr(run.engine._heap, "_collect", lambda: None)
    MADE.clear()
    assert await run.text(flow, "b") == "done"
    assert [component() for component in MADE] == [None]


async def test_what_lives_on_after_its_run_has_its_graph(run: Runner) -> None:
    assert await run.text(flows.through(LIVES_ON, imports=IMPORTS), "a") == "done"
    async with asyncio.timeout(5):
        assert await LATER.get() == ("Custom-it", "Chat Input")
