"""The accelerators: each alone gives what the engine gives without them, and none keeps anything from run to run."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import dis
import enum
import functools
import gc
import importlib
import os
import ssl
import weakref
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import uvicorn
from pydantic import BaseModel

from runtime.engine import accelerators
from runtime.engine.accelerators import (
    Installed,
    agent_functions,
    base,
    debug_texts,
    http_clients,
    json_copies,
    message_dumps,
    model_copies,
    request_bodies,
)
from runtime.engine.accelerators.base import Accelerator, Target
from runtime.engine.accelerators.classes import ClassCache, shipped_sources
from runtime.engine.accelerators.container_host import Remembered
from runtime.engine.accelerators.credentials import InnerLoop
from runtime.engine.accelerators.json_copies import NotJSONError, copy_json
from runtime.engine.accelerators.tls_contexts import Contexts
from runtime.engine.accelerators.tool_schemas import Schemas
from runtime.engine.memory import ChatOverlay
from runtime.engine.state import CURRENT, RunState
from runtime.errors import EngineError
from shared_models.route import Accelerators
from tests.integration.engine.conftest import Runner
from tests.support import flows
from tests.support.history import Sessions

NAMES = tuple(accelerator.name for accelerator in accelerators.ALL)
EVERY = frozenset(NAMES)

LEAKS = {
    "class attribute": flows.component(
        """
        def work(self) -> Message:
            Custom.count = getattr(Custom, "count", 0) + 1
            return Message(text=str(Custom.count))
        """
    ),
    "module list": flows.component(
        """
        def work(self) -> Message:
            SEEN.append(self.text)
            return Message(text=",".join(SEEN))
        """,
        imports="SEEN = []",
    ),
    "class inputs": flows.component(
        """
        def work(self) -> Message:
            type(self).inputs[0].info += "x"
            return Message(text=type(self).inputs[0].info)
        """
    ),
    "behind the audit's back": flows.component(
        """
        def work(self) -> Message:
            owner = [self.__class__][0]
            owner.count = getattr(owner, "count", 0) + 1
            return Message(text=str(owner.count))
        """
    ),
}


class Kind(enum.Enum):
    ONE = "one"


class Text(str):
    """No plain one."""


def test_the_spec_names_them_all() -> None:
    assert set(Accelerators.model_fields) == EVERY
    assert Accelerators().off == frozenset()
    assert Accelerators.model_validate(False).off == EVERY


def test_all_know_the_installed_version() -> None:
    assert {status.name: status.state for status in accelerators.statuses({})} == dict.fromkeys(NAMES, "on")


@pytest.mark.parametrize("name", NAMES)
async def test_each_alone_gives_what_the_engine_gives(run: Runner, name: str) -> None:
    for flow in (flows.hello(), flows.llm(prompt="Be brief."), flows.agent("CalculatorComponent")):
        plain = await run(flow, "What is 2 + 3?", without=EVERY)
        alone = await run(flow, "What is 2 + 3?", without=EVERY - {name})
        assert alone.result == plain.result


async def test_all_together_side_by_side(run: Runner) -> None:
    flow = flows.agent("CalculatorComponent")
    plain = await run(flow, "What is 2 + 3?", without=EVERY)
    for got in await asyncio.gather(*(run(flow, "What is 2 + 3?") for _ in range(8))):
        assert got.result == plain.result


@pytest.mark.parametrize("code", LEAKS.values(), ids=LEAKS.keys())
async def test_no_class_carries_anything_over(run: Runner, code: str) -> None:
    flow = flows.Flow("A component that remembers")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    custom = flow.custom(code, "Custom-it")
    chat_out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(chat_in, "message", custom, "text")
    flow.connect(custom, "out", chat_out, "input_value")
    stock = [await run.text(flow, "a", without=EVERY) for _ in range(3)]
    assert [await run.text(flow, "a") for _ in range(3)] == stock


@pytest.mark.usefixtures("engine")
def test_the_text_of_a_message_is_written_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    from lfx.components.input_output import ChatInput
    from lfx.schema.message import Message

    def written(off: frozenset[str], **attributes: Any) -> Any:
        component = ChatInput()
        for name, value in attributes.items():
            setattr(component, name, value)
        token = base.OFF.set(off)
        try:
            return component._build_artifact(Message(text="hello"))
        finally:
            base.OFF.reset(token)
            assert "custom_repr" not in component.__dict__

    stock, ours = written(EVERY, status=Message(text="s")), written(frozenset(), status=Message(text="s"))
    assert '"text": "s"' in stock["repr"]
    assert ours == stock | {"repr": "built"}
    for attributes in ({"status": "done"}, {"repr_value": {"a": 1}}, {"repr_value": ["b"]}, {"status": 5}):
        assert written(frozenset(), **attributes) == written(EVERY, **attributes)
    monkeypatch.setattr(ChatInput, "custom_repr", lambda _: "mine")
    assert written(frozenset(), status=Message(text="s"))["repr"] == "mine"


@pytest.mark.usefixtures("engine")
def test_the_text_of_a_class_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from lfx.components.input_output import ChatInput
    from lfx.custom.custom_component import component

    assert ChatInput(_code="own")._code == "own"
    first = ChatInput()._code
    assert first and "class ChatInput" in first
    monkeypatch.setattr(component.inspect, "getmodule", lambda _: pytest.fail("it was looked up again"))
    assert ChatInput()._code is first
    assert ChatInput(_code="own")._code == "own"


@pytest.mark.usefixtures("engine")
def test_a_service_is_the_one_that_the_engine_gives() -> None:
    from lfx.services import deps
    from lfx.services.manager import get_service_manager
    from lfx.services.schema import ServiceType

    settings = deps.get_settings_service()
    assert settings is not None
    assert settings is get_service_manager().get(ServiceType.SETTINGS_SERVICE)
    assert deps.get_service(ServiceType.TRACING_SERVICE) is None
    kept = get_service_manager().services.pop(ServiceType.SETTINGS_SERVICE)
    try:
        made = deps.get_settings_service()
        assert made is not None and made is not kept
    finally:
        get_service_manager().services[ServiceType.SETTINGS_SERVICE] = kept


async def test_the_editors_text_is_all_that_is_left_out(run: Runner) -> None:
    plain = await run(flows.hello(), "hello", without=EVERY)
    told = list(run.told.events)
    run.told.events.clear()
    assert (await run(flows.hello(), "hello")).result == plain.result
    assert [kind for kind, _ in run.told.events] == [kind for kind, _ in told]


# --- the check of what is replaced ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
async def test_one_that_does_not_know_the_text_steps_aside(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    installed: list[str] = []
    made = []
    for known in accelerators.ALL:
        targets = tuple(Target(t.module, t.name, frozenset({"0" * 16})) for t in known.targets)
        made.append(
            Accelerator(
                known.name,
                targets if known.name == name else known.targets,
                lambda _, which=known.name: installed.append(which),
            )
        )
    monkeypatch.setattr(accelerators, "ALL", tuple(made))
    with structlog.testing.capture_logs() as logs:
        now = Installed({})
    assert set(installed) == EVERY - {name}
    [line] = logs
    assert (line["event"], line["accelerator"]) == ("accelerator.aside", name)
    assert "has changed" in line["reason"]
    assert {s.name for s in now.statuses if s.state == "aside"} == {name}


def test_what_is_gone_is_a_reason_too() -> None:
    gone = Accelerator("x", (Target("lfx.utils.util", "no_such_function", frozenset({"0" * 16})),), lambda _: None)
    assert "does not exist" in (gone.misfit() or "")
    nowhere = Accelerator("x", (Target("no_such_package.at_all", "f", frozenset()),), lambda _: None)
    assert "does not exist" in (nowhere.misfit() or "")


@pytest.mark.usefixtures("engine")
async def test_what_was_kept_outlives_an_engine() -> None:
    """A worker loads its flows with one engine, closes it, and forks children that prepare it again."""
    now = Installed.take({})
    await now.let_go()
    assert Installed.take({}) is now
    with pytest.raises(EngineError):
        Installed.take({"classes": False})
    await now.let_go()


@pytest.mark.usefixtures("engine")
async def test_undoing_puts_the_engines_own_back() -> None:
    util = importlib.import_module("lfx.utils.util")
    before = util.get_container_host
    patches = base.Patches("container_host")
    patches.replace(util, "get_container_host", functools.partial(functools.partial))
    assert util.get_container_host is not before
    patches.undo()
    assert util.get_container_host is before


# --- single ones ----------------------------------------------------------------------------------------------------


def test_a_class_is_compiled_once_and_not_after_a_change() -> None:
    made: list[str] = []

    def compile_class(code: str, name: str | None = None) -> type:
        made.append(code)
        space: dict[str, Any] = {}
        exec(code, space)
        found: type = space["Probe"]
        return found

    source = "class Probe:\n    kinds = ['a']\n    def f(self): return self.kinds[0]"
    cache = ClassCache(compile_class, {source})
    first = cache.get(source)
    assert cache.get(source) is first and len(made) == 1
    first.kinds.append("b")
    assert cache.get(source) is not first and source in cache.refused
    assert cache.get(source) is not cache.get(source)


def test_only_what_langflow_ships_is_kept() -> None:
    cache = ClassCache(lambda code, name: type("Probe", (), {}), {"a = 1"})
    assert cache.get("a = 1") is cache.get("a = 1")
    assert cache.get("a = 2") is not cache.get("a = 2")


@pytest.mark.usefixtures("engine")
def test_what_langflow_ships_is_known() -> None:
    known = shipped_sources(importlib.import_module("lfx.interface.components")._read_component_index(None))
    assert len(known) > 100
    node = flows.component_index()["ChatInput"]
    assert node["template"]["code"]["value"] in known


def test_only_so_many_classes_are_kept() -> None:
    cache = ClassCache(lambda code, name: type("Probe", (), {"code": code}), {"a = 1", "b = 1", "c = 1"}, size=2)
    first = cache.get("a = 1")
    for code in ("b = 1", "c = 1"):
        cache.get(code)
    assert cache.get("a = 1") is not first


def test_tls_contexts_are_shared_by_what_they_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    contexts = Contexts(lambda **_: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    first = contexts.get(trust_env=True, http2=False)
    assert contexts.get(trust_env=True, http2=False) is first
    assert contexts.get(trust_env=True, http2=True) is not first
    monkeypatch.setenv("SSL_CERT_FILE", __file__)
    assert contexts.get(trust_env=True, http2=False) is not first


@pytest.mark.usefixtures("engine")
def test_a_client_with_its_own_verification_is_left_alone() -> None:
    def context(client: httpx.Client) -> Any:
        return client._transport._pool._ssl_context

    with httpx.Client() as one, httpx.Client() as other, httpx.Client(verify=False) as blind:
        assert context(one) is context(other)
        assert context(blind) is not context(one)
        assert context(blind).verify_mode == ssl.CERT_NONE


def test_the_container_host_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def ask() -> str:
        asked.append(1)
        return f"host-{len(asked)}"

    remembered = Remembered(ask)
    assert [remembered.get(), remembered.get()] == ["host-1", "host-1"]
    monkeypatch.setattr("runtime.engine.accelerators.container_host.FRESH", 300.0)
    monkeypatch.setattr("time.monotonic", lambda: 10.0**9)
    assert remembered.get() == "host-1", "an old answer is used while a thread asks"


def test_copies_of_json_are_equal_and_share_nothing() -> None:
    value = {"nodes": [{"a": [1, 2.5, None, True, "x"], "b": {}}], "edges": []}
    made = copy_json(value)
    assert made == value
    made["nodes"][0]["a"].append(1)
    assert value["nodes"][0]["a"] == [1, 2.5, None, True, "x"]
    for other in ((1, 2), {1, 2}, object(), {"a": (1,)}):
        with pytest.raises(NotJSONError):
            copy_json(other)


def test_what_is_packed_unpacks_to_an_equal_copy() -> None:
    value = {"nodes": [{"a": [1, 2.5, None, True, "x\ud800", 10**30], "é": {}}], "edges": []}
    kept = json_copies.packed(value)
    assert type(kept) is json_copies.Packed and kept == value
    for made in (kept.unpack(), copy.deepcopy(kept)):
        assert type(made) is dict and repr(made) == repr(value)
        made["nodes"][0]["a"].append(1)
        assert kept == value
    for other in ({"a": (1,)}, {"a": object()}, [1], {"a": enum}):
        assert json_copies.packed(other) is other


async def test_a_flow_is_packed_and_its_copies_are_plain(run: Runner) -> None:
    from runtime.engine.edits import Edit

    template = await run.load(flows.hello())
    assert type(template.graph.raw_graph_data) is json_copies.Packed
    for off in (frozenset(), EVERY):
        token = base.OFF.set(off)
        try:
            graph = template.copy(user_id="u", edit=Edit({}, frozenset(), {}, stream=False, fields={}))
        finally:
            base.OFF.reset(token)
        assert type(graph.raw_graph_data) is dict
        assert graph.raw_graph_data == template.graph.raw_graph_data


@pytest.mark.usefixtures("engine")
def test_copies_of_models_are_those_of_pydantic() -> None:
    seen = 0
    for kind in ("Agent", "ChatInput", "LanguageModelComponent", "APIRequest", "DataOperations"):
        made = _class_of(kind)
        for field in (*made.inputs, *made.outputs):
            want, got = copy.deepcopy(field), model_copies.copy_model(field)
            assert type(got) is type(want) and got == want
            assert got.__dict__.keys() == want.__dict__.keys()
            assert got.model_fields_set == want.model_fields_set
            assert (got.__pydantic_private__, got.__pydantic_extra__) == (
                want.__pydantic_private__,
                want.__pydantic_extra__,
            )
            assert not _shared(field, got)
            seen += 1
    assert seen > 40


def _class_of(kind: str) -> Any:
    from lfx.custom.eval import eval_custom_component_code

    return eval_custom_component_code(flows.component_index()[kind]["template"]["code"]["value"], kind)


def _shared(one: Any, other: Any) -> list[Any]:
    """What both hold and can change."""
    if isinstance(one, BaseModel):
        return [x for name in one.__dict__ for x in _shared(getattr(one, name), getattr(other, name))]
    if not isinstance(one, list | dict | set):
        return []
    if one is other:
        return [one]
    if isinstance(one, dict):
        return [x for key in one for x in _shared(one[key], other[key])]
    return [x for a, b in zip(one, other, strict=True) for x in _shared(a, b)]


# --- schemas and providers ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("engine")
def test_a_schema_is_made_once_for_the_same_inputs() -> None:
    io = importlib.import_module("lfx.io")
    made: list[Any] = []

    def make(inputs: list[Any]) -> Any:
        made.append(inputs)
        return type("InputSchema", (BaseModel,), {})

    schemas = Schemas(make)
    first = [io.MessageTextInput(name="a", info="x"), io.IntInput(name="n", value=1, required=False)]
    again = [io.MessageTextInput(name="a", info="x"), io.IntInput(name="n", value=1, required=False)]
    assert schemas.get(first) is schemas.get(again)
    others = [
        [io.MessageTextInput(name="a", info="y"), io.IntInput(name="n", value=1, required=False)],
        [io.MessageTextInput(name="a", info="x"), io.IntInput(name="n", value=2, required=False)],
        [io.MessageTextInput(name="a", info="x"), io.BoolInput(name="n", value=True, required=False)],
        [io.DropdownInput(name="a", info="x", options=["1", "2"])],
        [io.DropdownInput(name="a", info="x", options=["1", "3"])],
    ]
    assert len({schemas.get(first), *(schemas.get(other) for other in others)}) == 1 + len(others)
    changeable = [io.DictInput(name="d", value={"a": 1}, required=False)]
    assert schemas.get(changeable) is not schemas.get(changeable)


@pytest.mark.usefixtures("engine")
def test_what_a_model_is_told_of_a_tool_is_made_once() -> None:
    from langchain_core.tools import StructuredTool
    from langchain_core.utils.function_calling import convert_to_openai_tool

    io = importlib.import_module("lfx.io")
    schema = importlib.import_module("lfx.io.schema")

    def told(description: str, *, off: frozenset[str] = frozenset()) -> tuple[Any, dict[str, Any]]:
        token = base.OFF.set(off)
        try:
            kind = schema.create_input_schema([io.DropdownInput(name="a", info="which", options=["1", "2"])])
            tool = StructuredTool.from_function(print, name="t", description=description, args_schema=kind)
            return tool.tool_call_schema, convert_to_openai_tool(tool)
        finally:
            base.OFF.reset(token)

    stock = told("first", off=EVERY)[1]
    (kind, first), (again, second) = told("first"), told("first")
    assert kind is again
    assert first == second == stock
    first["function"]["parameters"]["properties"]["a"]["enum"].append("3")
    first["function"]["parameters"].setdefault("required", []).append("b")
    for _ in range(500):  # nothing is put around the class again and again
        kind_now, body = told("first")
    assert kind_now is kind
    assert body == stock
    other, body = told("second")
    assert other is not kind
    assert body["function"]["description"] == "second"
    kind.__doc__ = "changed"
    assert told("first")[0] is not kind


@pytest.mark.parametrize(
    "write",
    [
        lambda kind: setattr(kind.model_fields["a"], "description", "only for one customer"),
        lambda kind: setattr(kind.model_fields["a"], "default", "1"),
        lambda kind: kind.model_fields.pop("a"),
        lambda kind: kind.model_config.update(title="own"),
        lambda kind: setattr(kind, "remembered", "a secret"),
        lambda kind: setattr(kind, "model_json_schema", classmethod(lambda *_, **__: {"title": "own"})),
        lambda kind: kind.model_json_schema().update(title="own"),
        lambda kind: kind.model_json_schema()["properties"]["a"].update(description="own"),
    ],
    ids=["description", "default", "field", "config", "attribute", "method", "schema", "field in the schema"],
)
@pytest.mark.parametrize("which", ["arguments", "told"])
@pytest.mark.usefixtures("engine")
def test_what_a_run_does_to_a_tools_schema_is_its_own(write: Any, which: str) -> None:
    from langchain_core.tools import StructuredTool
    from langchain_core.utils.function_calling import convert_to_openai_tool

    io = importlib.import_module("lfx.io")
    schema = importlib.import_module("lfx.io.schema")

    def tool() -> Any:
        inputs = [io.MessageTextInput(name="a", info=f"{which} {write.__code__.co_firstlineno}")]
        return StructuredTool.from_function(
            print, name="t", description="d", args_schema=schema.create_input_schema(inputs)
        )

    stock = convert_to_openai_tool(tool())
    changed = tool()
    kind = changed.args_schema if which == "arguments" else changed.tool_call_schema
    write(kind)
    fresh = tool()
    assert convert_to_openai_tool(fresh) == stock
    for found in (fresh.args_schema, fresh.tool_call_schema):
        assert not hasattr(found, "remembered")
        assert "own" not in str(found.model_json_schema()) + str(found.model_config)


def test_the_schema_of_a_class_of_ones_own_is_left_alone() -> None:
    class Own(BaseModel):
        a: int

    schemas = Schemas(lambda _: Own)
    made: list[Any] = []

    def make(*args: Any, **kwargs: Any) -> Any:
        made.append((args, kwargs))
        return type("Subset", (BaseModel,), {})

    for _ in range(2):
        schemas.subset(make, "t", Own, ["a"], fn_description="x")
    assert made == [(("t", Own, ["a"]), {"fn_description": "x"})] * 2


@pytest.mark.usefixtures("engine")
def test_the_snapshot_of_providers_is_taken_anew_when_they_change() -> None:
    registry = importlib.import_module("lfx.base.models.provider_registry")
    first = registry.get_registry_snapshot()
    assert registry.get_registry_snapshot() is first
    own = registry.ProviderDescriptor(
        name="Provider of a test", metadata={"variables": [], "mapping": {"model_class": "ChatOpenAI"}}
    )
    try:
        assert registry.register_provider(own)
        assert registry.get_registry_snapshot() is not first
        assert own.name in {d.name for d in registry.get_registry_snapshot().descriptors_by_id.values()}
    finally:
        registry.unregister_provider(own.name)
    assert own.name not in {d.name for d in registry.get_registry_snapshot().descriptors_by_id.values()}


# --- credentials ----------------------------------------------------------------------------------------------------


def on(inner: InnerLoop, work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
    """As a component of a run on ``loop`` would have it."""
    CURRENT.set(RunState(flow_id="f", loop=loop, chat=ChatOverlay(Sessions(), loop, session=None)))
    assert inner.usable
    return inner.run(work)


async def test_a_look_up_runs_in_its_callers_context() -> None:
    inner = InnerLoop()
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
    outer, task = asyncio.get_running_loop(), asyncio.current_task()

    async def look() -> str:
        await asyncio.sleep(0.001)
        assert asyncio.get_running_loop() is not outer
        assert asyncio.current_task(outer) is task
        assert not inner.usable
        return who.get()

    assert not inner.usable, "no run"
    who.set("alice")
    assert on(inner, look(), outer) == "alice"
    assert (asyncio.get_running_loop(), asyncio.current_task()) == (outer, task)
    assert not await asyncio.to_thread(lambda: inner.usable)

    async def elsewhere() -> bool:
        return inner.usable

    assert not await asyncio.to_thread(lambda: asyncio.run(elsewhere())), "a loop of its own in a thread"
    inner.close()


async def test_a_look_up_that_fails_spoils_no_other() -> None:
    inner, loop = InnerLoop(), asyncio.get_running_loop()

    async def fail(error: BaseException) -> None:
        await asyncio.sleep(0)
        raise error

    async def look() -> str:
        await asyncio.sleep(0)
        return "found"

    for error in (LookupError("no such key"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            on(inner, fail(error), loop)
        assert on(inner, look(), loop) == "found"
    inner.close()


async def test_what_a_look_up_leaves_does_not_go_on_in_the_next() -> None:
    inner, loop, story = InnerLoop(), asyncio.get_running_loop(), list[str]()

    async def linger() -> None:
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            story.append("went on")
        except asyncio.CancelledError:
            story.append("ended")
            raise

    async def leave() -> None:
        tasks.append(asyncio.create_task(linger()))
        await asyncio.sleep(0)

    async def leave_uncounted() -> None:
        asyncio.get_running_loop().set_task_factory(None)
        await leave()

    async def leave_unseen() -> None:
        tasks.append(asyncio.Task(linger()))  # as some libraries make theirs
        await asyncio.sleep(0)

    async def items() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            story.append("closed")

    async def leave_open() -> None:
        generators.append(items())
        await anext(generators[0])

    async def look() -> None:
        story.append("next")
        for _ in range(10):
            await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    generators: list[Any] = []
    for leaves in (leave, leave_uncounted, leave_unseen, leave_open):
        on(inner, leaves(), loop)
        on(inner, look(), loop)
        used, _ = inner._loop, on(inner, look(), loop)
        assert inner._loop is used, "one that leaves nothing does not cost the loop"
    assert story == ["ended", "next", "next"] * 3 + ["closed", "next", "next"]
    inner.close()


async def test_a_fork_leaves_its_parents_loop_alone() -> None:
    inner, loop = InnerLoop(), asyncio.get_running_loop()

    async def look() -> int:
        return await asyncio.to_thread(lambda: 7)

    assert on(inner, look(), loop) == 7
    parents = inner._loop
    pid = os.fork()
    if not pid:
        inner._idle()
        os._exit(0 if inner._loop is not parents and parents in inner._foreign else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert inner._loop is parents
    assert on(inner, look(), loop) == 7
    inner.close()


async def test_a_look_up_that_fails_keeps_no_run() -> None:
    inner, loop = InnerLoop(), asyncio.get_running_loop()

    async def fail() -> None:
        raise LookupError("no such key")

    async def some_run() -> weakref.ref[Any]:
        mine = Sessions()
        contextvars.ContextVar[Any]("mine").set(mine)
        with pytest.raises(LookupError):
            on(inner, fail(), loop)
        return weakref.ref(mine)

    kept = await asyncio.create_task(some_run())
    await asyncio.sleep(0)  # the loop itself lets go of what it ran last
    gc.collect()
    assert kept() is None
    inner.close()


async def test_a_look_up_keeps_no_run(run: Runner) -> None:
    await asyncio.gather(*(run(flows.llm(), str(n)) for n in range(5)))
    gc.collect()
    assert len([kept for kept in gc.get_objects() if type(kept) is RunState]) <= 1


# --- HTTP clients ---------------------------------------------------------------------------------------------------


async def test_connections_to_a_provider_stay_open(run: Runner) -> None:
    flow = flows.llm()
    for n in range(4):
        await run(flow, f"call {n}")
    connections = {request.client for request in run.provider.requests[-4:]}
    assert len(connections) == 1


async def test_a_streamed_answer_leaves_its_connection_open(run: Runner) -> None:
    flow = flows.agent("CalculatorComponent")
    await run(flow, "What is 2 + 3?")
    first = len(run.provider.requests)
    for _ in range(3):
        await run(flow, "What is 2 + 3?")
    asked = run.provider.requests[first:]
    assert len(asked) == 3 and all(request.body["stream"] for request in asked)
    assert len({request.client for request in asked}) == 1


class _Parts(httpx.AsyncByteStream):
    """A body in parts; None: nothing comes for ever."""

    def __init__(self, *parts: bytes | None) -> None:
        self._parts = parts
        self.read, self.closed = 0, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            if part is None:
                await asyncio.Event().wait()
            else:
                self.read += 1
                yield part

    async def aclose(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("parts", "left_after", "read"),
    [
        ((b"data: 1\n\n", b"data: [DONE]\n\n", b"", b""), 2, 4),
        ((b"data: 1\n\ndata: [DO", b"NE]\n\n", b""), 2, 3),
        ((b"data: [DONE]\n\n", None), 1, 1),
        ((b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"), 1, 1),
        ((b"", b"data: [DONE]\n\n"), 2, 2),
    ],
    ids=["done", "done in pieces", "its end does not come", "left in the midst", "nothing behind it"],
)
async def test_what_is_left_of_a_finished_stream_is_read(
    monkeypatch: pytest.MonkeyPatch, parts: tuple[bytes | None, ...], left_after: int, read: int
) -> None:
    monkeypatch.setattr(http_clients, "REST", 0.01)
    inner = _Parts(*parts)
    stream = http_clients._ToItsEnd(inner)
    body = aiter(stream)
    assert [await anext(body) for _ in range(left_after)] == list(parts[:left_after])
    await stream.aclose()
    assert (inner.read, inner.closed) == (read, 1)


def test_a_connection_is_let_go_before_a_server_of_models_does_it() -> None:
    """Or a request meets a connection that is being closed, and is tried again, or fails."""
    servers = uvicorn.Config(None).timeout_keep_alive  # type: ignore[arg-type]  # no application: only its defaults are read
    for limits in (http_clients.LIMITS, http_clients.SYNC_LIMITS):
        assert limits.keepalive_expiry is not None and limits.keepalive_expiry < servers


async def test_each_call_brings_its_own_key(run: Runner) -> None:
    flow = flows.llm()
    for key in ("key-of-alice", "key-of-bob"):
        await run(flow, "hello", variables={"OPENAI_COMPATIBLE_API_KEY": key})
        assert run.provider.requests[-1].key == key


async def test_the_connections_of_a_url_have_one_tls_context() -> None:
    """Also where the accelerator that shares them is off: to make one takes 20 ms and a megabyte."""
    token = base.OFF.set(frozenset({"tls_contexts"}))
    try:
        for url in ("http://127.0.0.2:1/v1", "https://93.184.216.34/v1"):
            shared = http_clients._shared(base.Patches("http_clients"), url)
            assert shared is not None
            made = [shared._async._make() for _ in range(3)]
            assert len({id(one._pool._ssl_context) for one in [*made, shared._sync]}) == 1
            await shared.close()
    finally:
        base.OFF.reset(token)


async def test_transports_are_used_again_until_they_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    transports = http_clients.Transports(functools.partial(http_clients._shared, base.Patches("http_clients")))
    first = transports.get("http://127.0.0.2:1/v1")
    assert first is not None and transports.get("http://127.0.0.2:1/v1") is first
    assert transports.get("http://127.0.0.2:2/v1") is not first
    held = first.hand_out()
    monkeypatch.setattr(first, "until", 0.0)
    second = transports.get("http://127.0.0.2:1/v1")
    assert second is not None and second is not first
    assert transports._retired == [first], "a run still has it"
    del held
    gc.collect()
    transports.get("http://127.0.0.2:3/v1")
    assert transports._retired == []
    await transports.close()


@pytest.mark.parametrize("on", [True, False], ids=["shared", "the engine's own"])
async def test_what_a_run_does_to_its_clients_is_its_own(run: Runner, *, on: bool) -> None:
    """Headers, hooks and cookies of a client, and its end, are not the next run's."""
    flow = flows.through(
        """
        async def work(self) -> Message:
            from lfx.base.models.unified_models import instantiation
            pair = instantiation.ssrf_protected_openai_clients_for_url(self.text)
            client = pair["http_async_client"]
            found = {"header": client.headers.get("x-who"), "cookie": client.cookies.get("who")}
            client.headers["x-who"] = "alice"
            client.cookies.set("who", "alice")
            answer = await client.get(self.text + "/models")
            await client.aclose()
            pair["http_client"].close()
            return Message(text=f"{answer.status_code} {found}")
        """
    )
    without = frozenset() if on else EVERY
    for _ in range(3):
        told = await run.text(flow, run.provider.url, without=without)
        assert told == "200 {'header': None, 'cookie': None}"


async def test_a_runs_proxy_is_its_own(run: Runner) -> None:
    flow = flows.through(
        """
        async def work(self) -> Message:
            import os
            from lfx.base.models.unified_models import instantiation
            if self.text.startswith("proxy "):
                os.environ["HTTP_PROXY"] = "http://127.0.0.2:9"
            pair = instantiation.ssrf_protected_openai_clients_for_url(self.text.removeprefix("proxy "))
            client = pair["http_async_client"]
            text = str(bool([mount for mount in client._mounts.values() if mount]))
            await client.aclose()
            pair["http_client"].close()
            return Message(text=text)
        """
    )
    texts = [run.provider.url, f"proxy {run.provider.url}", run.provider.url]
    assert [await run.text(flow, text) for text in texts] == ["False", "True", "False"]


async def test_code_outside_of_a_run_gets_clients_of_its_own(run: Runner) -> None:
    from lfx.base.models.unified_models import instantiation

    assert CURRENT.get() is None
    one, other = (instantiation.ssrf_protected_openai_clients_for_url(run.provider.url) for _ in range(2))
    assert one["http_client"] is not other["http_client"]
    for pair in (one, other):
        pair["http_client"].close()
        await pair["http_async_client"].aclose()


def _bodies() -> list[Any]:
    from openai._types import NotGiven, Omit, not_given

    message = {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": None}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "number"}}}}}
    return [
        {"model": "m", "messages": [message], "temperature": 0.5, "tools": [tool], "stop": not_given, "n": NotGiven()},
        {"model": "m", "messages": [], "audio": Omit(), "logit_bias": {"1": 2}, "of a later version": {"x": [1, None]}},
        {"model": "m", "messages": ({"role": "user", "content": "a tuple"},)},
        {"model": "m", "messages": [], "metadata": {"nested": not_given}},
        {"model": "m", "messages": [], "response_format": {"type": "json_schema", "json_schema": {"schema": bytes(3)}}},
    ]


@pytest.mark.usefixtures("engine")
async def test_a_request_goes_out_as_the_client_would_send_it() -> None:
    from openai._utils import _transform
    from openai.resources.chat.completions import completions
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as Params

    assert completions.async_maybe_transform is not _transform.async_maybe_transform
    for body in _bodies():
        theirs = _transform.maybe_transform(body, Params)
        assert completions.maybe_transform(body, Params) == theirs
        assert await completions.async_maybe_transform(body, Params) == theirs
    body = _bodies()[0]
    sent = await completions.async_maybe_transform(body, Params)
    sent["messages"][0]["content"].append("changed on the way")
    assert len(body["messages"][0]["content"]) == 1


@pytest.mark.usefixtures("engine")
async def test_the_machines_name_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    from openai import _base_client
    from openai._utils import _sync

    monkeypatch.setattr(_sync, "to_thread", lambda *_: pytest.fail("it went to a thread"))
    assert await _base_client.asyncify(_base_client.get_platform)() == _base_client.get_platform()
    with pytest.raises(pytest.fail.Exception):
        await _base_client.asyncify(len)("abc")


def test_a_request_whose_types_rename_a_field_is_left_to_the_client(tmp_path: Path) -> None:
    folder = tmp_path / "chat"
    folder.mkdir()
    (folder / "some_param.py").write_text("cards: Annotated[str, PropertyInfo(alias='cardID')]")
    assert request_bodies._renaming(tmp_path) == "some_param.py"
    (folder / "some_param.py").write_text("cards: str")
    assert request_bodies._renaming(tmp_path) is None


@pytest.mark.usefixtures("engine")
def test_a_client_that_is_not_as_it_was_can_be_imported_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks: list[Any] = []
    monkeypatch.setattr(base, "register_post_import_hook", lambda hook, _: hooks.append(hook))
    request_bodies._install(base.Patches("request_bodies"))
    with structlog.testing.capture_logs() as logs:
        hooks[0](Path)  # has no maybe_transform
    assert [(line["event"], "KeyError" in line["reason"]) for line in logs] == [("accelerator.aside", True)]


class Loud(str):
    """A text that counts how often it is written out."""

    told = 0

    def __repr__(self) -> str:
        Loud.told += 1
        return super().__repr__()

    __str__ = __repr__


def debugged(words: list[str]) -> str:
    """For the next test."""
    logger = structlog.get_logger()
    logger.debug(f"words {words}")
    if words:
        logger.debug("once more %s", words)
    else:
        raise LookupError("no words")
    logger.info("told")
    return words[0]


def test_a_functions_debug_lines_alone_are_left_out() -> None:
    short = debug_texts.without_debug(importlib.import_module(__name__), "debugged")
    Loud.told = 0
    with structlog.testing.capture_logs() as logs:
        assert short([Loud("a")]) == debugged(["a"]) == "a"
    assert [line["event"] for line in logs] == ["told", "words ['a']", "once more ['a']", "told"]
    assert Loud.told == 0
    with pytest.raises(LookupError, match="no words") as caught:
        short([])
    with pytest.raises(LookupError) as stock:
        debugged([])
    assert caught.traceback[-1].lineno == stock.traceback[-1].lineno
    assert caught.traceback[-1].path == stock.traceback[-1].path
    with pytest.raises(LookupError, match="has no debug lines"):
        debug_texts.without_debug(importlib.import_module(__name__), "test_the_spec_names_them_all")


# --- messages -------------------------------------------------------------------------------------------------------

PLAIN_CONTENTS: list[Any] = [
    {"type": "tool_use", "tool_input": {"a": [1, 2.5, None, True, "x"], "b": {}}, "output": "5", "duration": 3},
    {"a": float("inf"), "b": -0.0},
    [],
    "text",
]
OTHER_CONTENTS: list[Any] = [
    {"at": datetime(2026, 1, 2, tzinfo=UTC)},
    {"_sa_instance_state": 1, "a": 2},
    {1: "a", None: "b"},
    {"a": (1, 2)},
    {"a": {"x"}},
    {"call": len},
    {"kind": Kind.ONE},
    {"text": Text("t")},
]


@pytest.mark.parametrize("content", [*PLAIN_CONTENTS, *OTHER_CONTENTS], ids=str)
@pytest.mark.usefixtures("engine")
def test_the_contents_of_a_message_are_encoded_as_by_fastapi(content: Any) -> None:
    from fastapi.encoders import jsonable_encoder
    from lfx.schema import content_types

    want = jsonable_encoder(content, custom_encoder=content_types.CUSTOM_ENCODERS)
    assert content_types.jsonable_encoder is not jsonable_encoder
    got = content_types.jsonable_encoder(content, custom_encoder=content_types.CUSTOM_ENCODERS)
    assert (repr(got), type(got)) == (repr(want), type(want))
    if content in OTHER_CONTENTS:
        with pytest.raises(NotJSONError):
            message_dumps.plain(content)
    elif isinstance(content, dict | list):
        assert message_dumps.plain(content) == want
        assert got is not content


@pytest.mark.usefixtures("engine")
def test_contents_are_left_to_fastapi_where_other_types_are_written_in_a_way_of_their_own() -> None:
    from fastapi.encoders import jsonable_encoder
    from lfx.schema import content_types

    content = {"text": "shout", "count": 2}
    known = content_types.CUSTOM_ENCODERS
    for encoders in ({**known, str: str.upper}, {**known, dict: repr}, dict(list(known.items())[:1]), {int: str}, None):
        want = jsonable_encoder(content, custom_encoder=encoders)
        assert content_types.jsonable_encoder(content, custom_encoder=encoders) == want


@pytest.mark.parametrize(
    "timestamp",
    [
        "2026-01-02 03:04:05.000006 UTC",
        "2026-13-02 03:04:05.000006 UTC",
        "2026-01-02 24:04:05.000006 UTC",
        "2026-01-02 03:04:60.000006 UTC",
        "2026-01-02 03:04:05.6 UTC",
        "2026-01-02 03:04:05 UTC",
        " 2026-01-02 03:04:05.000006 UTC",
        "2026-01-02 03:04:05.000006 UTC\n",
        "2026-01-02 03:04:05.000006 GMT",
        "0999-01-02 03:04:05.000006 UTC",
        "\uff12\uff10\uff12\uff16-01-02 03:04:05.000006 UTC",
        "2026-01-02T03:04:05+02:00",
        "never",
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        datetime(2026, 1, 2),
    ],
    ids=repr,
)
@pytest.mark.usefixtures("engine")
def test_a_time_is_written_as_by_the_engine(timestamp: Any) -> None:
    from lfx.schema import message, validators

    def written(write: Any) -> str:
        try:
            return str(write(timestamp))
        except ValueError as error:
            return repr(error)

    assert message.timestamp_to_str is not validators.timestamp_to_str
    assert written(message.timestamp_to_str) == written(validators.timestamp_to_str)
    assert message_dumps.is_written(timestamp) == (timestamp == "2026-01-02 03:04:05.000006 UTC")


# --- agents ---------------------------------------------------------------------------------------------------------


async def test_what_is_not_traced_needs_no_thread(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    from langsmith import traceable, tracing_context
    from langsmith._internal import _aiter

    class HoppedError(Exception):
        pass

    async def hop(context: contextvars.Context, step: Any, /, *args: Any, **kwargs: Any) -> Any:
        raise HoppedError

    monkeypatch.setattr(_aiter, "_default_aio_to_thread", hop)

    @traceable(name="call")
    async def call(word: str, *, fail: bool = False) -> str:
        if fail:
            raise LookupError(word)
        return word

    assert await call("a") == "a"
    with pytest.raises(LookupError, match="b"):
        await call("b", fail=True)
    with pytest.raises(HoppedError):
        await call("c", langsmith_extra={"name": "own"})
    with pytest.raises(HoppedError), tracing_context(enabled=True):
        await call("d")
    own = traceable(name="own", process_outputs=lambda _: {})(call.__wrapped__)
    with pytest.raises(HoppedError):
        await own("f")
    token = base.OFF.set(frozenset({"untraced_calls"}))
    try:
        with pytest.raises(HoppedError):
            await call("e")
    finally:
        base.OFF.reset(token)


@pytest.mark.usefixtures("engine")
async def test_an_agents_events_come_in_order_and_wake_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    from langchain_core.tracers.memory_stream import _MemoryStream

    loop = asyncio.get_running_loop()
    stream: Any = _MemoryStream(loop)
    send, receive = stream.get_send_stream(), stream.get_receive_stream()
    await asyncio.to_thread(send.send_nowait, "from a thread")
    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_soon_threadsafe", lambda *_: pytest.fail("the loop was woken"))
        for word in ("a", "b", "c"):
            send.send_nowait(word)
        await send.send("d")
    await send.aclose()
    assert [item async for item in receive] == ["from a thread", "a", "b", "c", "d"]


def test_the_instructions_of_a_function_are_those_that_dis_gives() -> None:
    for code in (test_all_know_the_installed_version.__code__, (lambda x: x.y).__code__):
        assert list(agent_functions.instructions(code)) == list(dis.get_instructions(code))
        assert agent_functions.instructions(code) is agent_functions.instructions(code)


@pytest.mark.usefixtures("engine")
def test_what_a_function_reaches_is_looked_up_each_time() -> None:
    from langgraph.pregel._utils import get_function_nonlocals

    def make(value: object) -> Any:
        return lambda: value

    first, second = object(), object()
    assert get_function_nonlocals(make(first)) == [first, first]
    assert get_function_nonlocals(make(second)) == [second, second]
