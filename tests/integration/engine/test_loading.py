"""Flows that cannot be loaded, old ones that can, and loops."""

from __future__ import annotations

import asyncio
import time

import pytest

from runtime.errors import FlowInvalid, FlowUnready, RunFailed
from tests.integration.engine.conftest import Runner
from tests.support import flows


async def test_a11_an_absent_package_is_named_and_other_flows_go_on(run: Runner) -> None:
    flow = flows.through("def work(self) -> Message:\n    return Message(text='')")
    code = flow.template("Custom-it")["code"]
    code["value"] = "import no_such_package_at_all\n" + code["value"]
    with pytest.raises(FlowUnready, match=r"no_such_package_at_all|no-such-package-at-all"):
        await run.load(flow)
    assert await run.text(flows.hello(), "alive") == "alive"


async def test_a_component_that_cannot_be_made_is_named(run: Runner) -> None:
    flow = flows.through("def work(self) -> Message:\n    return Message(text='')")
    code = flow.template("Custom-it")["code"]
    code["value"] = code["value"].replace("def work", "def work(:")
    with pytest.raises(FlowUnready, match=r"Custom-it.*syntax error"):
        await run.load(flow)


async def test_a16_code_that_needs_an_older_engine_is_told_with_the_version(run: Runner) -> None:
    flow = flows.through("def work(self) -> Message:\n    return Message(text='')")
    flow.node("Custom-it")["node"]["lf_version"] = "1.2.0"
    code = flow.template("Custom-it")["code"]
    code["value"] = "from lfx.no_such_module_any_more import Thing\n" + code["value"]
    with pytest.raises(FlowUnready, match=r"Custom-it.*saved by Langflow 1\.2\.0.*lfx\.no_such_module_any_more"):
        await run.load(flow)


async def test_a16_an_export_of_0x_is_refused_at_once(run: Runner) -> None:
    node = {"id": "PromptTemplate-1", "data": {"type": "PromptTemplate", "node": {"template": {"_type": "prompt"}}}}
    began = time.monotonic()
    with pytest.raises(FlowUnready, match=r"Langflow 0\.x.*PromptTemplate.*export it again"):
        await run.load({"name": "old", "data": {"nodes": [node], "edges": []}})
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    ("export", "says"),
    [
        ({"flows": []}, "project export"),
        ({}, "no list of nodes"),
        ({"data": {"nodes": []}}, "no components"),
        ({"data": {"nodes": {}}}, "no list of nodes"),
        ({"data": {"nodes": [{"id": "note-1", "type": "noteNode", "data": {}}]}}, "no components"),
        ({"data": {"nodes": ["x"]}}, "a node has no data"),
        ({"data": {"nodes": [{"id": "A-1", "data": {"type": "A"}}]}}, "A-1"),
    ],
)
async def test_a17_what_is_no_flow_is_told_in_a_sentence(run: Runner, export: dict[str, object], says: str) -> None:
    with pytest.raises(FlowInvalid, match=says):
        await run.load(export)


async def test_an_edge_to_nothing_is_not_dropped_silently(run: Runner) -> None:
    for end, says in (("source", "Nobody-1"), ("target", "Nobody-1")):
        flow = flows.hello(name=f"Loose {end}")
        flow.edges[0][end] = "Nobody-1"
        with pytest.raises(FlowUnready, match=says):
            await run.load(flow)
    flow = flows.hello(name="Loose field")
    flow.edges[0]["data"]["targetHandle"]["fieldName"] = "gone"
    with pytest.raises(FlowUnready, match=r"ChatOutput-out.*'gone'"):
        await run.load(flow)


OLD_CHAT_INPUT = """
from langflow.base.io.chat import ChatComponent
from langflow.io import MessageTextInput, MultilineInput, Output
from langflow.schema.message import Message


class ChatInput(ChatComponent):
    display_name = "Chat Input"
    name = "ChatInput"
    inputs = [
        MultilineInput(name="input_value", display_name="Text", value=""),
        MessageTextInput(name="sender", display_name="Sender", value="User"),
        MessageTextInput(name="sender_name", display_name="Sender Name", value="User"),
        MessageTextInput(name="session_id", display_name="Session ID"),
    ]
    outputs = [Output(display_name="Message", name="message", method="message_response")]

    def message_response(self) -> Message:
        message = Message(
            text=self.input_value, sender=self.sender, sender_name=self.sender_name, session_id=self.session_id
        )
        if self.session_id and isinstance(message, Message):
{store}
        self.status = message
        return message
"""
SENDS = """
            stored = self.send_message(message)
            self.message.value = stored
            message = stored
"""
STORES = """
            self.store_message(message)
            self.message.value = message
"""


@pytest.mark.parametrize("store", [SENDS, STORES], ids=["1.1 sends", "1.0 stores"])
async def test_a16_an_old_chat_input_works_with_a_session(run: Runner, store: str) -> None:
    flow = flows.Flow(f"Old chat {len(store)}", version=None)
    chat_in = flow.custom(OLD_CHAT_INPUT.format(store=store), "ChatInput-in")
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(chat_in, "message", out, "input_value")
    assert await run.text(flow, "without") == "without"
    assert await run.text(flow, "with", session_id="s") == "with"
    assert run.history.texts("s") == ["with", "with"]


def loop() -> flows.Flow:
    """Words to a Loop whose body shouts each, to a component that joins them."""
    flow = flows.Flow("Loop flow")
    imports = (
        "from lfx.schema.data import Data\nfrom lfx.schema.dataframe import DataFrame\nfrom lfx.io import HandleInput"
    )
    chat_in = flow.add("ChatInput", "ChatInput-in")
    split = flow.custom(
        flows.component(
            "def work(self) -> DataFrame:\n    return DataFrame([{'text': w} for w in self.text.split()])",
            name="Split",
            imports=imports,
        ),
        "Split-it",
    )
    again = flow.add("LoopComponent", "LoopComponent-it")
    handle = (
        'HandleInput(name="given", display_name="Given", input_types=["Data", "JSON", "DataFrame", "Table", "Message"])'
    )
    shout = flow.custom(
        flows.component(
            "def work(self) -> Data:\n    return Data(text=self.given.get_text().upper())",
            name="Shout",
            inputs=handle,
            imports=imports,
        ),
        "Shout-it",
    )
    join = flow.custom(
        flows.component(
            "def work(self) -> Message:\n"
            "    table = hasattr(self.given, 'columns')\n"
            "    rows = self.given.to_dict('records') if table else [d.data for d in self.given]\n"
            "    return Message(text='+'.join(str(r.get('text')) for r in rows))",
            name="Join",
            inputs=handle,
            imports=imports,
        ),
        "Join-it",
    )
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(chat_in, "message", split, "text")
    flow.connect(split, "out", again, "data")
    flow.connect(again, "item", shout, "given")
    flow.connect(shout, "out", again, "item")
    flow.connect(again, "done", join, "given")
    flow.connect(join, "out", out, "input_value")
    return flow


@pytest.mark.parametrize("words", ["a b c", "a", "one two three four five"])
async def test_c10_a_loop_gives_each_item_once_in_order(run: Runner, words: str) -> None:
    for _ in range(2):
        assert await run.text(loop(), words) == "+".join(words.upper().split())


async def test_c10_a_loop_over_nothing_ends(run: Runner) -> None:
    async with asyncio.timeout(20):
        try:
            output = await run(loop(), " ")
        except RunFailed as caught:
            assert caught.info.component_id
        else:
            assert output.result.text in ("", None)


OLD_LOOP = """
from langflow.custom import Component
from langflow.io import DataInput, Output
from langflow.schema import Data


class LoopComponent(Component):
    display_name = "Loop"
    name = "LoopComponent"
    inputs = [DataInput(name="data", display_name="Data")]
    outputs = [
        Output(display_name="Item", name="item", method="item_output", allows_loop=True),
        Output(display_name="Done", name="done", method="done_output"),
    ]

    def begin(self) -> None:
        if not self.ctx.get(f"{self._id}_begun", False):
            rows = self.data if isinstance(self.data, list) else [self.data]
            state = {f"{self._id}_rows": rows, f"{self._id}_at": 0, f"{self._id}_got": [], f"{self._id}_begun": True}
            self.update_ctx(state)

    def over(self) -> bool:
        return EVER and self.ctx.get(f"{self._id}_at", 0) > len(self.ctx.get(f"{self._id}_rows", []))

    def item_output(self) -> Data:
        self.begin()
        if self.over():
            self.stop("item")
            return Data(text="")
        rows, at, got = (self.ctx.get(f"{self._id}_{key}") for key in ("rows", "at", "got"))
        if isinstance(self.item, Data) and 0 < at <= len(rows):
            self.update_ctx({f"{self._id}_got": [*got, self.item]})
        self.update_ctx({f"{self._id}_at": at + 1})
        return rows[at % len(rows)] if not EVER or at < len(rows) else Data(text="")

    def done_output(self) -> Data:
        self.begin()
        if self.over():
            self.stop("item")
            self.start("done")
            return self.ctx.get(f"{self._id}_got", [])
        self.stop("done")
        return Data(text="")
"""


def old_loop(*, ever: bool) -> flows.Flow:
    """The loop flow with a Loop component as Langflow 1.1 to 1.4 saved it, which ends only if ``ever``."""
    flow = loop()
    flow.name, flow.version = f"Old loop {ever}", "1.2.0"
    old = flows.Flow("only for its node")
    old.custom(OLD_LOOP.replace("EVER", str(ever)), "LoopComponent-it")
    node = next(node for node in flow.nodes if node["id"] == "LoopComponent-it")
    node["data"] = old.node("LoopComponent-it")
    code = flow.template("Split-it")["code"]
    code["value"] = (
        code["value"]
        .replace("-> DataFrame:", "-> list[Data]:")
        .replace("DataFrame([{'text': w} for w in self.text.split()])", "[Data(text=w) for w in self.text.split()]")
    )
    return flow


@pytest.mark.parametrize("words", ["a b c", "a"])
async def test_c10_a_loop_saved_by_an_older_version_ends_with_every_item_in_order(run: Runner, words: str) -> None:
    async with asyncio.timeout(20):
        for _ in range(2):
            assert await run.text(old_loop(ever=True), words) == "+".join(words.upper().split())


async def test_c10_a_loop_that_never_ends_is_stopped_by_the_time_limit(run: Runner) -> None:
    flow = old_loop(ever=False)
    await run.load(flow)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await run(flow, "a b")
    assert await run.text(flows.hello(), "alive") == "alive"


async def test_loading_does_not_hold_up_runs(run: Runner) -> None:
    quick = flows.hello()
    await run.load(quick)
    slow = flows.through("def work(self) -> Message:\n    return Message(text='')")
    code = slow.template("Custom-it")["code"]
    code["value"] = "import time\n_ = time.sleep(1)\n" + code["value"]
    loading = asyncio.create_task(run.load(slow))
    assert await run.text(quick, "meanwhile") == "meanwhile"
    assert not loading.done()
    await loading


async def test_an_upgrade_is_applied_in_memory_only(run: Runner) -> None:
    export = flows.hello(name="Upgraded").export()
    before = repr(export)
    source = flows.source(export, upgrade=True, version="upgraded")
    assert await run.text(source, "hi") == "hi"
    assert repr(export) == before
