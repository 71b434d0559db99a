"""What is left of a graph when its run has ended."""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from structlog.testing import capture_logs

from runtime.engine.heap import WHOLE
from runtime.errors import Fault
from tests.integration.engine.conftest import Runner
from tests.support import flows

MADE: list[weakref.ref[Any]] = []
"""Witnesses of the components of these tests, and of other things of theirs."""

KEPT: list[Any] = []
"""What somebody else has of a run."""

LATER: asyncio.Queue[Any] = asyncio.Queue()
"""What a component tells after its run."""

GO_ON = threading.Event()

PLAIN = """
    async def work(self) -> Message:
        test_heap.note(self)
        test_heap.note(self._vertex.graph)
        return Message(text="done")
    """

FAILS = """
    async def work(self) -> Message:
        raise ValueError("no")
    """

TELL = """
    def tell(self) -> None:
        try:
            vertex = self.graph.get_vertex("ChatInput-in")
            told = (self._vertex.id, vertex.custom_component.display_name, self.text)
        except Exception as error:
            told = error
        test_heap.LOOP[0].call_soon_threadsafe(test_heap.LATER.put_nowait, told)
    """

LIVES_ON = {
    "a callback": """
    async def work(self) -> Message:
        asyncio.get_running_loop().call_later(0.05, self.tell)
        return Message(text="done")
    """,
    "a task": """
    async def work(self) -> Message:
        test_heap.KEPT.append(asyncio.create_task(self.later()))
        return Message(text="done")

    async def later(self) -> None:
        await asyncio.sleep(0.05)
        self.tell()
    """,
    "a thread": """
    async def work(self) -> Message:
        threading.Thread(target=self.later, daemon=True).start()
        return Message(text="done")

    def later(self) -> None:
        test_heap.GO_ON.wait(10)
        self.tell()
    """,
    "an inner function": """
    async def work(self) -> Message:
        test_heap.KEPT.append(lambda: self.tell())
        return Message(text="done")
    """,
    "a neighbour": """
    async def work(self) -> Message:
        test_heap.KEPT.append(self.graph.get_vertex("ChatOutput-out").custom_component)
        asyncio.get_running_loop().call_later(0.05, test_heap.through_neighbour)
        return Message(text="done")
    """,
    "an error": """
    async def work(self) -> Message:
        try:
            raise ValueError("caught")
        except ValueError as error:
            test_heap.KEPT.append(error)
        return Message(text="done")
    """,
    "a generator": """
    async def work(self) -> Message:
        left = self.parts()
        next(left)
        test_heap.KEPT.append(left)
        return Message(text="done")

    def parts(self):
        yield 1
        self.tell()
    """,
}

FINALIZER = """
    async def work(self) -> Message:
        test_heap.note(self._vertex.graph)
        return Message(text="done")

    def __del__(self) -> None:
        test_heap.KEPT.append((self._vertex.id, self._vertex.graph.get_vertex("ChatInput-in").id))
    """

IMPORTS = "import asyncio\nimport threading\nimport weakref\nfrom tests.integration.engine import test_heap"

LOOP: list[asyncio.AbstractEventLoop] = []


class Witness:
    """Lives as long as what has it does, or has it. A weak reference to that itself would be somebody's."""


def note(thing: Any) -> None:
    """Have a witness tell whether a thing is as it was."""
    thing.witness = Witness()
    MADE.append(weakref.ref(thing.witness))


def through_neighbour() -> None:
    """Tell what can be seen from another component of the graph."""
    KEPT[0].graph.get_vertex("Custom-it").custom_component.tell()


@pytest.fixture(autouse=True)
def no_collector(run: Runner) -> Iterator[None]:
    for kept in (MADE, KEPT, LOOP):
        kept.clear()
    GO_ON.clear()
    gc.collect()
    gc.disable()
    with (
        mock.patch.object(run.engine._heap._collector, "collect", lambda: 0),
        mock.patch.object(engine_module("remains"), "AGAIN", 0),
    ):
        yield
    gc.enable()
    KEPT.clear()
    gc.collect()


def engine_module(name: str) -> Any:
    """One of ours that imports lfx, which the engine does in its own way first."""
    return importlib.import_module(f"runtime.engine.{name}")


async def quiet() -> None:
    """Let the loop do what a run leaves it to do."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_graph_that_nobody_has_is_gone_without_the_collector(run: Runner) -> None:
    flow = flows.through(PLAIN, imports=IMPORTS)
    for text in ("built", "copied"):
        MADE.clear()
        assert await run.text(flow, text) == "done"
        await quiet()
        assert [each() for each in MADE] == [None, None]


@pytest.mark.parametrize(
    "flow",
    [flows.hello(), flows.llm(prompt="Be brief."), flows.agent("CalculatorComponent", "CurrentDate")],
    ids=["hello", "model", "agent"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_leaves_nothing_to_the_collector(run: Runner, flow: flows.Flow, stream: bool) -> None:
    for _ in range(2):  # what is made once
        await gone_after(run, flow, stream=stream)
    left = []
    for _ in range(3):  # the provider's thread leaves some at times, too; what the run leaves, each of them does
        gc.collect()
        await gone_after(run, flow, stream=stream)
        left.append(gc.collect())
    assert min(left) == 0


async def gone_after(run: Runner, flow: flows.Flow, **request: Any) -> None:
    """Run a flow, and wait until its graph is gone."""
    runner = engine_module("runner")
    make = runner.leave

    def leave(graph: Any, *more: Any) -> None:
        note(graph)
        make(graph, *more)

    # A streamed message is told by a thread, which may have it for a moment longer.
    with mock.patch.object(runner, "leave", leave), mock.patch.object(engine_module("remains"), "AGAIN", 0.25):
        await run(flow, "What is 2 + 3?", **request)
        async with asyncio.timeout(5):
            while MADE[-1]() is not None:
                await asyncio.sleep(0)
    await quiet()


async def test_what_somebody_has_for_a_moment_is_taken_apart_then(run: Runner) -> None:
    flow = flows.through(PLAIN, imports=IMPORTS)
    runner = engine_module("runner")
    make = runner.leave

    def leave(graph: Any, *more: Any) -> None:
        KEPT.append(graph)
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, KEPT.clear)
        make(graph, *more)

    with mock.patch.object(runner, "leave", leave), mock.patch.object(run.engine._heap, "left_whole") as left_whole:
        await run(flow, "a")
        await quiet()
    assert MADE[-1]() is None
    assert left_whole.call_count == 0


@pytest.mark.parametrize("how", LIVES_ON)
async def test_what_lives_on_after_its_run_has_all_that_it_had(run: Runner, how: str) -> None:
    LOOP.append(asyncio.get_running_loop())
    assert await run.text(flows.through(LIVES_ON[how] + TELL, imports=IMPORTS), "a") == "done"
    await quiet()
    GO_ON.set()
    match how:
        case "an inner function":
            KEPT[0]()
        case "a generator":
            assert list(KEPT[0]) == []
        case "an error":
            KEPT[0].__traceback__.tb_frame.f_locals["self"].tell()
    async with asyncio.timeout(5):
        assert await LATER.get() == ("Custom-it", "Chat Input", "a")


async def test_a_tool_that_somebody_kept_can_be_called(run: Runner) -> None:
    taken: list[Any] = []
    runner = engine_module("runner")
    make = runner.leave

    def leave(graph: Any, *more: Any) -> None:
        taken.extend(graph.get_vertex("Agent-it").custom_component.tools)
        make(graph, *more)

    with mock.patch.object(runner, "leave", leave):
        await run(flows.agent("CalculatorComponent"), "What is 2 + 3?")
    await quiet()
    tool = next(each for each in taken if each.name == "evaluate_expression")
    assert "6" in str(await tool.ainvoke({"expression": "2*3"}))


async def test_what_looks_back_when_it_ends_is_left_to_the_collector(run: Runner) -> None:
    flow = flows.through(FINALIZER, imports=IMPORTS)
    for _ in range(2):  # the load makes a component, and so does the making of a prototype
        await run.text(flow, "a")
        await quiet()
        gc.collect()
    KEPT.clear()
    with mock.patch.object(run.engine._heap, "left_whole") as left_whole:
        await run.text(flow, "a")
        await quiet()
    assert not KEPT and MADE[-1]() is not None
    assert left_whole.call_count == 1
    gc.collect()
    assert ("Custom-it", "ChatInput-in") in KEPT


async def test_a_failed_runs_error_has_its_frames(run: Runner) -> None:
    with pytest.raises(Fault) as failed:
        await run(flows.through(FAILS, imports=IMPORTS), "a")
    await quiet()
    frames = [frame.f_locals for frame in _frames(failed.value)]
    assert any(hasattr(found.get("graph"), "vertices") for found in frames)


def _frames(error: BaseException | None) -> Iterator[Any]:
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            yield trace.tb_frame
            trace = trace.tb_next
        error = error.__cause__


async def test_what_cannot_be_freed_at_once_is_collected_all_the_same(run: Runner) -> None:
    flow, had = flows.through(FAILS, imports=IMPORTS), []
    heap = run.engine._heap
    collect = mock.patch.object(heap._collector, "collect", lambda: had.append(gc.collect()) or had[-1])
    with collect, mock.patch.multiple(heap, _whole=0, _rest_until=0.0):
        for _ in range(WHOLE + 1):
            with pytest.raises(Fault):
                await run(flow, "a")
        assert had and sum(had) > 0


async def test_a_cancelled_timer_keeps_no_run() -> None:
    loop, variable = asyncio.get_running_loop(), ContextVar[Any]("variable")
    contexts = [Context(), Context()]
    for context in contexts:
        context.run(variable.set, Part())
        MADE.append(weakref.ref(context[variable]))
    cancelled, waits = [loop.call_later(60, print, context=context) for context in contexts]
    contexts.clear()
    del context
    cancelled.cancel()
    engine_module("remains")._forget_cancelled(loop)
    assert MADE[0]() is None and MADE[1]() is not None
    waits.cancel()


@pytest.mark.parametrize("limit", ["MOST", "MOST_ENTRIES"])
async def test_a_graph_that_holds_much_is_left_to_the_collector(run: Runner, limit: str) -> None:
    told: list[Any] = []
    remains = engine_module("remains")
    take: Callable[[list[Any]], Any] = remains.take_apart

    def noted(holder: list[Any]) -> Any:
        told.append(take(holder))
        return told[-1]

    with (
        mock.patch.multiple(remains, take_apart=noted, **{limit: 50}),
        mock.patch.object(run.engine._heap, "left_whole") as left_whole,
    ):
        await run(flows.through(PLAIN, imports=IMPORTS), "a")
        await quiet()
    assert told == [remains.Remains.TOO_MUCH], "and it is not tried again"
    assert left_whole.call_count == 1 and MADE[-1]() is not None


@pytest.mark.parametrize(
    "much",
    [
        "[[test_heap.Witness() for _ in range(990)] for _ in range(99)]",
        "[[{key: test_heap.Witness() for key in range(9)} for _ in range(990)] for _ in range(9)]",
        "[[[test_heap.Witness()] for _ in range(990)] for _ in range(12)]",
    ],
)
async def test_much_is_not_followed_to_its_end(run: Runner, much: str) -> None:
    """How long it takes is bounded by what is looked at."""
    remains, looked = engine_module("remains"), list[int]()

    def read(*objects: Any) -> list[Any]:
        found = gc.get_referents(*objects)
        looked.append(len(found))
        return found

    names = {name: getattr(gc, name) for name in ("is_tracked", "isenabled", "disable", "enable")}
    body = PLAIN.replace("return Message", f"self.much = {much}\n        return Message")
    with mock.patch.object(remains, "gc", SimpleNamespace(**names, get_referents=read)):
        await run(flows.through(body, imports=IMPORTS), "a")
        await quiet()
    assert MADE[-1]() is not None
    assert sum(looked) <= remains.MOST + remains.MOST_ENTRIES


@pytest.mark.parametrize("much", ["[[each] for each in range(12_000)]", "[[[each]] * 900 for each in range(900)]"])
async def test_what_lives_on_with_much_has_all_that_it_had(run: Runner, much: str) -> None:
    LOOP.append(asyncio.get_running_loop())
    body = LIVES_ON["a task"].replace("test_heap.KEPT", f"self.much = {much}\n        test_heap.KEPT", 1)
    await run(flows.through(body + TELL, imports=IMPORTS), "a")
    await quiet()
    async with asyncio.timeout(5):
        assert await LATER.get() == ("Custom-it", "Chat Input", "a")


BIG = """
    async def work(self) -> Message:
        test_heap.note(self)
        self.rows = [{"of": self if back else None} for back in [BACK] * 30_000]
        return Message(text="done")
    """


@pytest.mark.parametrize("back", [False, True])
async def test_a_long_list_is_not_walked_into(run: Runner, back: bool) -> None:
    flow = flows.through(BIG, imports=f"{IMPORTS}\nBACK = {back}")
    with mock.patch.object(run.engine._heap, "left_whole") as left_whole:
        await run(flow, "a")
        await quiet()
    assert (MADE[-1]() is not None) is back, "what is in it may refer to anything"
    assert left_whole.call_count == int(back)


class Part:
    """Like a part of a graph."""


async def test_the_attributes_of_a_part_that_somebody_has_are_left_in_it() -> None:
    def make() -> Part:
        whole, part = Part(), Part()
        whole.part, part.whole, part.text = part, whole, "a"  # type: ignore[attr-defined]
        return whole

    for take in (vars, lambda whole: vars(whole.part), lambda whole: iter(vars(whole.part))):
        has = take(make())
        (whole,) = (each for each in gc.get_objects() if type(each) is Part and hasattr(each, "part"))
        note(whole)
        holder = [whole]
        del whole
        assert engine_module("remains").take_apart(holder) is engine_module("remains").Remains.HELD
        assert holder[0].part.text == "a"
        holder.clear()
        del has
        gc.collect()
        assert MADE[-1]() is None


async def test_what_somebody_has_that_leads_nowhere_is_no_reason() -> None:
    whole = Part()
    whole.whole, whole.leaf = whole, [[1]]  # type: ignore[attr-defined]
    leaf = whole.leaf  # type: ignore[attr-defined]
    note(whole)
    holder = [whole]
    del whole
    assert engine_module("remains").take_apart(holder) is engine_module("remains").Remains.APART
    assert MADE[-1]() is None and leaf == [[1]]


@pytest.mark.parametrize("taken", [False, True])
async def test_what_a_thread_takes_during_the_walk_is_in_its_hands(taken: bool) -> None:
    remains = engine_module("remains")

    def make() -> Part:
        whole = Part()
        whole.jobs = [lambda: whole]  # type: ignore[attr-defined]
        return whole

    holder = [make()]
    jobs: list[Any] = []

    def take_one(*objects: Any) -> list[Any]:
        """A thread that takes a job once the walk has been at the list, and has the list no more."""
        found = gc.get_referents(*objects)
        if taken and not jobs and any(type(each) is FunctionType for each in found):
            jobs.append(next(each for each in objects if type(each) is list).pop())
        return found

    names = {name: getattr(gc, name) for name in ("is_tracked", "isenabled", "disable", "enable")}
    with mock.patch.object(remains, "gc", SimpleNamespace(**names, get_referents=take_one)):
        became = remains.take_apart(holder)
    assert became is (remains.Remains.HELD if taken else remains.Remains.APART)
    assert [job() for job in jobs] == holder and all(hasattr(each, "jobs") for each in holder)


JOBS = """
    async def work(self) -> Message:
        jobs = [self.tell]
        self.jobs = [jobs, *([n] for n in range(2000))]
        threading.Thread(target=test_heap.take, args=(jobs,), daemon=True).start()
        return Message(text="done")
    """


def take(jobs: list[Callable[[], None]]) -> None:
    """A thread that takes what it is to do off a list of its component's."""
    GO_ON.wait(10)
    jobs.pop()()


async def test_a_thread_may_take_its_work_off_a_list_meanwhile(run: Runner) -> None:
    LOOP.append(asyncio.get_running_loop())
    remains = engine_module("remains")
    part = remains._part

    def meanwhile(*arguments: Any) -> None:
        GO_ON.set()
        part(*arguments)

    for _ in range(10):
        GO_ON.clear()
        with mock.patch.object(remains, "_part", meanwhile):
            await run(flows.through(JOBS + TELL, imports=IMPORTS), "a")
            async with asyncio.timeout(5):
                assert await LATER.get() == ("Custom-it", "Chat Input", "a")


WEAK = """
    async def work(self) -> Message:
        class Last:
            def __init__(self, component):
                self.heard = weakref.WeakMethod(component.tell)

            def __del__(self):
                test_heap.KEPT.append(self.heard())

        self.last = Last(self)
        test_heap.note(self)
        return Message(text="done")
    """


async def test_what_is_referred_to_weakly_is_whole_or_gone(run: Runner) -> None:
    with mock.patch.object(run.engine._heap, "left_whole") as left_whole:
        await run(flows.through(WEAK + TELL, imports=IMPORTS), "a")
        await quiet()
    assert left_whole.call_count == 1 and MADE[-1]() is not None
    gc.collect()
    assert KEPT[-1:] == [None], "as the collector has it: what a finalizer refers to weakly is gone"


async def test_a_thread_that_follows_a_weak_reference_finds_all_or_nothing() -> None:
    """Whenever it does: it goes on while graphs are taken apart."""
    take_apart, found, over = engine_module("remains").take_apart, list[bool](), threading.Event()
    current: list[Any] = [None]

    def follow() -> None:
        while not over.is_set():
            if (whole := current[0] and current[0]()) is not None:
                found.append(hasattr(whole, "text"))
            del whole

    thread = threading.Thread(target=follow)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(500):
            whole = Part()
            whole.whole, whole.text = whole, "a"  # type: ignore[attr-defined]
            current[0] = weakref.ref(whole)
            holder = [whole]
            del whole
            take_apart(holder)
            holder.clear()
            current[0] = None
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert found and all(found)


async def test_what_has_a_finalizer_is_left_to_the_collector() -> None:
    class Last(Part):
        def __del__(self) -> None:
            KEPT.append(self.text)  # type: ignore[attr-defined]  # set below

    last = Last()
    last.last, last.text = last, "a"  # type: ignore[attr-defined]
    holder: list[Any] = [last]
    del last
    assert engine_module("remains").take_apart(holder) is engine_module("remains").Remains.HELD
    holder.clear()
    gc.collect()
    assert KEPT == ["a"]


async def test_a_route_may_have_its_graphs_left_to_the_collector(run: Runner) -> None:
    flow = flows.through(PLAIN, imports=IMPORTS)
    with mock.patch.object(run.engine._heap, "left_whole") as left_whole:
        await run(flow, "a", without=frozenset({"ended_graphs"}))
        await quiet()
        assert left_whole.call_count == 1 and MADE[-1]() is not None
        await run(flow, "a")
        await quiet()
    assert left_whole.call_count == 1 and MADE[-1]() is None


ODD = """
    async def work(self) -> Message:
        class Last:
            def __del__(self):
                test_heap.VARIABLE.set("of this run")

        self.odd, self.last = [test_heap.odd()], Last()
        test_heap.note(self)
        return Message(text="done")
    """


def odd() -> Any:
    """An input that minds being looked at."""
    from lfx.io import StrInput  # the engine's: it is imported by then

    class Odd(StrInput):
        def __getattribute__(self, name: str) -> Any:
            if name in ("value", "__dict__"):
                raise ValueError("odd")
            return super().__getattribute__(name)

    return Odd(name="x")


VARIABLE: ContextVar[str] = ContextVar("variable")


async def test_a_components_own_code_is_not_asked(run: Runner) -> None:
    flow = flows.through(ODD, imports=IMPORTS)
    await run(flow, "a")
    await quiet()
    assert MADE[-1]() is None
    assert VARIABLE.get("nothing") == "nothing"


async def test_what_goes_wrong_is_logged_and_the_graph_left(run: Runner) -> None:
    remains = engine_module("remains")
    with (
        mock.patch.object(remains, "_gather", side_effect=ValueError("odd")),
        mock.patch.object(run.engine._heap, "left_whole") as left_whole,
        capture_logs() as logs,
    ):
        await run(flows.hello(), "a")
        await quiet()
    assert left_whole.call_count == 1
    assert [line["event"] for line in logs] == ["graph_not_freed"]


async def test_one_closure_of_two_functions_counts_once() -> None:
    class Thing:
        pass

    def share(thing: Any) -> Any:
        return lambda: thing

    thing = Thing()
    first = share(thing)
    thing.one, thing.other = first, type(first)(first.__code__, {}, closure=first.__closure__)  # type: ignore[attr-defined]
    note(thing)
    remains = engine_module("remains")
    del first
    assert remains.take_apart([thing]) is remains.Remains.HELD
    assert thing.one() is thing  # type: ignore[attr-defined]  # it is there
    holder = [thing]
    del thing
    assert remains.take_apart(holder) is remains.Remains.APART
    assert MADE[-1]() is None and not holder
