"""Graphs of runs that are copies of a prototype. The engine of these tests makes one at a flow's first run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import structlog

from runtime.engine.accelerators import classes, graph_copies
from runtime.engine.prototypes import Prototype, UnlikeError
from shared_models.route import Accelerators
from tests.integration.engine.conftest import Runner
from tests.support import flows

EVERY = frozenset(Accelerators.model_fields)
OTHERS = frozenset({"graph_copies"})

COUNTS = flows.component(
    """
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        MADE.append(1)

    def work(self) -> Message:
        return Message(text=f"{self.text} {len(MADE)}")
    """,
    imports="MADE = []",
)


class Copies:
    """Notes which prototypes are made and used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Any] = []
        self.used = 0
        make, copy = graph_copies._GraphPrototype.__init__, graph_copies._GraphPrototype.copy

        def noted(prototype: Any, graph: Any, edit: Any) -> None:
            make(prototype, graph, edit)
            self.made.append(prototype)

        def counted(prototype: Any, user_id: str) -> Any:
            graph = copy(prototype, user_id)
            self.used += graph is not None
            return graph

        monkeypatch.setattr(graph_copies._GraphPrototype, "__init__", noted)
        monkeypatch.setattr(graph_copies._GraphPrototype, "copy", counted)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


def a_flow(code: str | None = None, *, name: str, **values: Any) -> flows.Flow:
    """Chat in, a component, chat out."""
    flow = flows.Flow(name)
    chat_in, chat_out = flow.add("ChatInput", "ChatInput-in"), flow.add("ChatOutput", "ChatOutput-out")
    middle = flow.custom(code or flows.component("def work(self) -> Message:\n    return self.text"), "It", **values)
    flow.connect(chat_in, "message", middle, "text")
    flow.connect(middle, "out", chat_out, "input_value")
    return flow


async def test_a_run_of_a_copy_is_a_run(run: Runner, copies: Copies) -> None:
    flow = flows.agent("CalculatorComponent", name="Copied agent")
    plain = await run(flow, "What is 2 + 3?", without=EVERY)
    assert (copies.made, copies.used) == ([], 0)
    for _ in range(3):
        assert (await run(flow, "What is 2 + 3?")).result == plain.result
    assert len(copies.made) == 1 and copies.used == 3 and copies.made[0]._rest == []
    for got in await asyncio.gather(*(run(flow, "What is 2 + 3?") for _ in range(8))):
        assert got.result == plain.result
    assert len(copies.made) == 1 and copies.used == 11


async def test_a_copy_is_like_what_the_engine_builds(run: Runner) -> None:
    from runtime.engine.edits import Edit

    template = await run.load(flows.agent("CalculatorComponent", name="Compared"))
    edit = Edit(template.bindings, template.cells, {"OPENAI_COMPATIBLE_BASE_URL": "http://x"}, stream=True, fields={})
    copied = template.copy(user_id="u", edit=edit)
    with mock.patch.object(graph_copies._switch, "patches", None):
        built = template.copy(user_id="u", edit=edit)
    assert copied._start_time <= built._start_time and copied._start_time.tzinfo is built._start_time.tzinfo
    copied._start_time = built._start_time = None
    Prototype(built, copied, opaque=graph_copies._switch.opaque)  # which compares them, object by object


async def test_a_prototype_is_made_beside_the_loop_after_some_runs(run: Runner, copies: Copies) -> None:
    waiting: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
    threads: list[int] = []

    def in_thread(work: Callable[..., None], *arguments: Any) -> None:
        waiting.put_nowait(lambda: (threads.append(threading.get_ident()), work(*arguments))[1])

    with mock.patch.multiple(graph_copies, AFTER=3, in_thread=in_thread):
        flow = a_flow(name="Some runs")
        for _ in range(2):
            assert await run.text(flow, "x") == "x"
        assert waiting.empty() and not copies.made
        await run.text(flow, "x")
        assert copies.used == 0
        await asyncio.to_thread(waiting.get_nowait())
        assert len(copies.made) == 1 and threads != [threading.get_ident()]
        assert await run.text(flow, "y") == "y" and copies.used == 1
    assert waiting.empty()


async def test_making_one_beside_the_loop_is_what_a_worker_does() -> None:
    done: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def work(text: str) -> None:
        loop.call_soon_threadsafe(done.put_nowait, (threading.get_ident(), text))

    with mock.patch.object(graph_copies, "in_thread", IN_THREAD):
        graph_copies.in_thread(work, "done")
        async with asyncio.timeout(10):
            thread, text = await done.get()
    assert text == "done" and thread != threading.get_ident()


IN_THREAD = graph_copies.in_thread
"""As it is outside of these tests' engine."""


async def test_each_tenant_is_its_own_user(run: Runner, copies: Copies) -> None:
    code = flows.component("def work(self) -> Message:\n    return Message(text=str(self.user_id))")
    flow = a_flow(code, name="Whose run")
    plain = [await run.text(flow, "x", tenant_id=tenant, without=EVERY) for tenant in ("a", "b", None)]
    assert [await run.text(flow, "x", tenant_id=tenant) for tenant in ("a", "b", None)] == plain
    assert len(set(plain)) == 3 and len(copies.made) == 1 and copies.used == 3


async def test_the_values_of_variables_are_each_runs_own(run: Runner, copies: Copies) -> None:
    code = flows.component(
        "def work(self) -> Message:\n    return Message(text=self.key)",
        inputs='StrInput(name="key", display_name="Key", value="", load_from_db=True)',
        imports="from lfx.io import StrInput",
    )
    flow = a_flow(code, name="Whose key", key="MY_KEY")
    flow.template("It")["key"]["load_from_db"] = True
    for value in ("the key of one", "the key of another" * 10):
        assert await run.text(flow, "x", variables={"MY_KEY": value}) == value
    assert copies.used == 2 and len(copies.made) == 1
    made = copies.made[0]._prototype
    assert b"the key of" not in made._state
    assert not any("the key of" in text for text in made._shared if isinstance(text, str))


async def test_a_cell_with_a_variables_value_is_built_each_time(run: Runner, copies: Copies) -> None:
    flow = flows.hello(name="Cells")
    columns = [{"name": "key", "load_from_db": True}, {"name": "value", "load_from_db": True}]
    field = {"type": "table", "show": True, "table_schema": {"columns": columns}, "value": [{"key": "MY_CELL"}]}
    flow.template(flow.nodes[0]["id"])["a_table"] = {**field, "name": "a_table", "display_name": "A table"}
    with structlog.testing.capture_logs() as logs:
        for value in ("first", "second"):
            assert await run.text(flow, "x", variables={"MY_CELL": value})
    assert not copies.made
    said = [line for line in logs if line["event"] == "accelerator.flow_aside"]
    assert len(said) == 1 and said[0]["flow"] == "Cells" and "MY_CELL" in said[0]["reason"]


async def test_what_an_event_changes_is_built_each_time(run: Runner, copies: Copies) -> None:
    flow = a_flow(name="Tweaked")
    for text in ("first", "second"):
        payload = {"input_value": "x", "tweaks": {"ChatInput-in": {"sender_name": text}}}
        output = await run(flow, payload=payload, tweaks_allowed=["ChatInput-in.sender_name"])
        assert output.result.text == "x"
    assert copies.made == []


async def test_a_route_that_is_without_has_none(run: Runner, copies: Copies) -> None:
    for _ in range(2):
        assert await run.text(a_flow(name="Without"), "x", without=OTHERS) == "x"
    assert copies.made == []


async def test_streamed_runs_are_of_another_kind(run: Runner, copies: Copies) -> None:
    flow = flows.llm(prompt="Be brief.")
    texts = {await run.text(flow, "x", stream=stream) for stream in (True, False, True, False)}
    assert len(texts) == 1 and len(copies.made) == 2 and copies.used == 4


async def test_only_so_many_kinds_are_kept(run: Runner, copies: Copies) -> None:
    flow = a_flow(name="Kinds")
    template = await run.load(flow)
    for number in range(graph_copies.MAX_KINDS + 2):
        await run.text(flow, "x", without=frozenset({f"switch_{number}"}))
    assert len(template.prototypes._kinds) == graph_copies.MAX_KINDS  # type: ignore[attr-defined]  # what an engine loads is its own
    await run.text(flow, "x", without=frozenset({"switch_9"}))
    assert len(copies.made) == graph_copies.MAX_KINDS + 2
    await run.text(flow, "x", without=frozenset({"switch_0"}))
    assert len(copies.made) == graph_copies.MAX_KINDS + 3


async def test_variables_that_the_flow_does_not_name_make_no_kind(run: Runner, copies: Copies) -> None:
    flow = a_flow(name="Names")
    for number in range(12):
        await run.text(flow, "x", variables={f"NAME_{number}": "x"})
    assert len(copies.made) == 1 and copies.used == 12


async def test_only_so_much_is_kept_over_all_flows(run: Runner, copies: Copies) -> None:
    one, other = a_flow(name="One of many"), a_flow(name="Another of many")
    little = mock.patch.multiple(graph_copies, MAX_BYTES=1, AGAIN=4)
    with little, mock.patch.object(graph_copies._switch, "kept", KEPT()) as kept:
        for flow in (one, one, other, other):
            await run.text(flow, "x")
        assert len(copies.made) == 2 and copies.used == 4 and len(kept._sizes) == 1
        for _ in range(3):
            await run.text(one, "x")
        assert len(copies.made) == 2 and copies.used == 4, "what had to go is not made again at once"
        await run.text(one, "x")
        assert len(copies.made) == 3 and copies.used == 5 and len(kept._sizes) == 1
    with mock.patch.object(graph_copies._switch, "kept", KEPT()) as kept:
        third = a_flow(name="One that has room")
        for flow in (one, third, one, third):
            await run.text(flow, "x")
        assert len(copies.made) == 4 and len(kept._sizes) == 2
        assert kept._bytes == sum(kept._sizes.values()) > 1000


KEPT = graph_copies._Kept


async def test_texts_that_the_flow_has_anyway_are_not_kept_twice(run: Runner, copies: Copies) -> None:
    flow = a_flow(name="Long texts")
    template = await run.load(flow)
    await run.text(flow, "x")
    there = {text: id(text) for text in graph_copies._texts(template.graph.raw_graph_data) if len(text) > 100}  # type: ignore[attr-defined]  # see above
    shared = [text for text in copies.made[0]._prototype._shared if type(text) is str and text in there]
    assert len(shared) > 2 and all(id(text) == there[text] for text in shared)


@pytest.mark.parametrize("given", [{"file_path": ["f/notes.txt"]}, {"value": "notes.txt"}, {"value": ["notes.txt"]}])
async def test_a_flow_with_a_file_in_a_field_is_built_each_time(run: Runner, given: dict[str, Any]) -> None:
    flow = a_flow(name="A file")
    template = await run.load(flow)
    data = flow.export()["data"]
    assert not list(graph_copies._obstacles(data))
    flow.template("ChatInput-in")["files"].update(given)
    assert list(graph_copies._obstacles(flow.export()["data"])) == ["component ChatInput-in, field 'files': a file"]
    template.graph.raw_graph_data = flow.export()["data"]  # type: ignore[attr-defined]  # see above
    with pytest.raises(UnlikeError, match="a file"):
        graph_copies._GraphPrototype(template.graph, mock.Mock())  # type: ignore[attr-defined]  # see above


async def test_what_could_not_be_made_is_tried_again_much_later(run: Runner, copies: Copies) -> None:
    flow = a_flow(name="Later")
    failing = mock.Mock(side_effect=RuntimeError("not now"))
    with mock.patch.object(graph_copies, "AGAIN", 4):
        with mock.patch.object(graph_copies, "_Build", failing):
            for _ in range(3):
                await run.text(flow, "x")
        assert failing.call_count == 1 and not copies.made
        await run.text(flow, "x")
        assert len(copies.made) == 1 and copies.used == 1


async def test_a_component_with_a_constructor_of_its_own_is_made_once_for_each_run(
    run: Runner, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = a_flow(COUNTS, name="Counts")
    with structlog.testing.capture_logs() as logs:
        assert [await run.text(flow, "made") for _ in range(3)] == ["made 1"] * 3
    assert not copies.made
    (said,) = [line for line in logs if line["event"] == "accelerator.flow_aside"]
    assert said["reason"] == "component It has a constructor of its own"
    # One of those that Langflow ships is known not to look around.
    cache = classes._Installed.cache
    assert cache is not None
    monkeypatch.setattr(cache, "known", cache.known | {flow.template("It")["code"]["value"]})
    monkeypatch.setattr(cache, "refused", {})
    shipped = a_flow(COUNTS, name="Counts, shipped")
    await run.text(shipped, "made")
    assert copies.made[0]._rest == ["It"] and len(copies.made[0]._classes) == 2


async def test_a_component_of_the_users_own_is_made_for_each_run(run: Runner, copies: Copies) -> None:
    assert [await run.text(a_flow(name="Own"), text) for text in "xyz"] == ["x", "y", "z"]
    assert copies.made[0]._rest == ["It"] and copies.used == 3


async def test_a_class_that_a_run_has_changed_is_not_in_the_next(run: Runner, copies: Copies) -> None:
    flow = flows.hello(name="Changes a class")
    await run.text(flow, "x")
    (_, made), *_ = copies.made[0]._classes
    made.leaked = "by a run"
    assert await run.text(flow, "x") == "x"  # built, and counted anew
    assert copies.used == 1
    assert await run.text(flow, "x") == "x"
    assert len(copies.made) == 2
    assert made not in [kept for _, kept in copies.made[1]._classes]


async def test_builds_that_are_unlike_are_said_once(run: Runner, copies: Copies, monkeypatch: Any) -> None:
    from lfx.graph.vertex.base import Vertex

    instantiate, numbers = Vertex.instantiate_component, iter(range(1000))

    def numbered(vertex: Any, *args: Any, **kwargs: Any) -> None:
        instantiate(vertex, *args, **kwargs)
        vertex.custom_component.number = next(numbers)

    monkeypatch.setattr(Vertex, "instantiate_component", numbered)
    with structlog.testing.capture_logs() as logs:
        assert [await run.text(a_flow(name="Numbered"), text) for text in "xyz"] == ["x", "y", "z"]
    said = [line for line in logs if line["event"] == "accelerator.flow_aside"]
    assert [(line["flow"], line["log_level"]) for line in said] == [("Numbered", "info")]
    assert "['number']: " in said[0]["reason"] and copies.made == []


async def test_a_graph_that_cannot_be_built_fails_as_the_engine_fails(
    run: Runner, copies: Copies, monkeypatch: Any
) -> None:
    flow = a_flow(name="Cannot be built")
    template = await run.load(flow)
    monkeypatch.setattr(graph_copies._Build, "_instantiate", mock.Mock(side_effect=RuntimeError("no")))
    with structlog.testing.capture_logs() as logs:
        assert await run.text(flow, "x") == "x"
    assert [line["reason"] for line in logs if line["event"] == "accelerator.flow_aside"] == ["RuntimeError: no"]
    assert template.prototypes._kinds and copies.made == []  # type: ignore[attr-defined]  # see above
