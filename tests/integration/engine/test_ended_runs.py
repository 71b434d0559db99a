"""What would keep an ended run, and does not: each does what the engine's own does."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import importlib
import inspect
import pickle
import random
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypedDict, get_type_hints
from unittest import mock

import httpx
import pytest

from runtime.engine.accelerators import graph_walks, http_clients
from runtime.engine.accelerators.base import OFF
from runtime.engine.state import CURRENT
from tests.integration.engine.conftest import Runner
from tests.support import flows

EVERY = frozenset(
    {
        "graph_walks",
        "agent_nodes",
        "agent_states",
        "stream_timeouts",
        "model_clients",
        "display_text",
        "component_caches",
        "message_blocks",
    }
)


@pytest.fixture(autouse=True)
def no_collector(run: Runner) -> Iterator[None]:
    gc.collect()
    gc.disable()
    with mock.patch.object(run.engine._heap._collector, "collect", lambda: 0):
        yield
    gc.enable()


@pytest.fixture
def off() -> Iterator[Any]:
    """Calls a function the engine's own way."""

    def call(function: Any, *arguments: Any) -> Any:
        token = OFF.set(EVERY)
        try:
            return function(*arguments)
        finally:
            OFF.reset(token)

    yield call


def garbage_of(function: Any, *arguments: Any) -> int:
    """What a call leaves to the collector; other threads may leave some meanwhile, but not each time."""
    left = []
    for _ in range(5):
        gc.collect()
        function(*arguments)
        left.append(gc.collect())
    return min(left)


def test_layers_are_sorted_alike(off: Any) -> None:
    sort = importlib.import_module("lfx.graph.graph.utils")._sort_single_layer_by_dependency
    dice = random.Random(5)
    for _ in range(200):
        layer = [f"v{number}" for number in range(dice.randint(1, 9))]
        edges = {v: dice.sample([*layer, "elsewhere"], dice.randint(0, len(layer))) for v in layer}
        assert sort(layer, edges.__getitem__) == off(sort, layer, edges.__getitem__), edges


def test_what_may_run_next_is_found_alike(off: Any) -> None:
    graph_class = importlib.import_module("lfx.graph.graph.base").Graph
    find = graph_class.find_runnable_predecessors_for_successor
    assert find.__module__ == graph_class.__module__ and find.__wrapped__
    dice = random.Random(6)
    for _ in range(200):
        names = [f"v{number}" for number in range(dice.randint(1, 9))]
        graph = mock.Mock()
        graph.run_manager.run_predecessors = {v: dice.sample(names, dice.randint(0, len(names))) for v in names}
        runnable = set(dice.sample(names, dice.randint(0, len(names))))
        graph.is_vertex_runnable = runnable.__contains__
        assert find(graph, names[0]) == off(find, graph, names[0])


def test_a_sorted_layer_keeps_no_graph() -> None:
    class Graph:
        def successors(self, _vertex: str) -> list[str]:
            return []

    graph = Graph()
    gone = weakref.ref(graph)
    assert graph_walks._Layer(["a"], graph.successors).last_place("a") == 0
    importlib.import_module("lfx.graph.graph.utils")._sort_single_layer_by_dependency(["a", "b"], graph.successors)
    del graph
    assert gone() is None


def test_a_node_does_not_keep_itself_and_calls_its_own() -> None:
    kind = importlib.import_module("langgraph._internal._runnable").RunnableCallable

    class Node(kind):  # type: ignore[misc, valid-type]  # without types
        def __init__(self) -> None:
            super().__init__(self.work, None, trace=False)

        def work(self, value: int) -> int:
            return value + 1

    node = Node()
    assert node.func == node.work and node.afunc is None
    assert node.invoke(1) == 2
    node.func = len
    assert node.func is len
    node.func = Node().work
    assert node.func.__self__ is not node, "another's method is kept with the other"
    del node.func
    with pytest.raises(AttributeError):
        _ = node.func
    gone = weakref.ref(node := Node())
    del node
    assert gone() is None
    token = OFF.set(EVERY)
    gone = weakref.ref(node := Node())
    OFF.reset(token)
    assert node.invoke(1) == 2
    del node
    assert gone() is not None


def test_a_copy_of_a_node_calls_what_the_original_would() -> None:
    kind = importlib.import_module("langgraph._internal._runnable").RunnableCallable

    class Node(kind):  # type: ignore[misc, valid-type]  # without types
        def __init__(self, number: int) -> None:
            self.number = number
            super().__init__(self.work, None, trace=False)

        def work(self, value: int) -> tuple[int, int]:
            return self.number, value

    for without in (EVERY, frozenset[str]()):
        token = OFF.set(without)
        node = Node(1)
        OFF.reset(token)
        other = copy.copy(node)
        other.number = 2
        assert other.invoke(5) == (1, 5)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_deep_copy_of_a_node_calls_its_own(off: Any, how: Any) -> None:
    write = importlib.import_module("langgraph.pregel._write")
    for node in (make := functools.partial(write.ChannelWrite, []))(), off(make):
        other = how(node)
        assert other.func.__self__ is other and other.afunc.__self__ is other
        assert node.func.__self__ is node


def test_a_copy_whose_original_has_gone_says_so() -> None:
    write = importlib.import_module("langgraph.pregel._write")
    other = copy.copy(write.ChannelWrite([]))
    assert other.func.__self__ is other
    with pytest.raises(TypeError, match="has gone"):
        copy.deepcopy(other)


async def test_a_part_that_does_not_come_is_the_same_error(run: Runner) -> None:
    await run(flows.llm(), "a")  # which imports the client
    module = importlib.import_module("langchain_openai.chat_models._client_utils")

    async def parts() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    for without in (frozenset[str](), EVERY):
        token = OFF.set(without)
        got = []
        with pytest.raises(module.StreamChunkTimeoutError) as failed:
            async for part in module._astream_with_chunk_timeout(parts(), 0.01):
                got.append(part)
        OFF.reset(token)
        assert got == [1] and failed.value.chunks_received == 1


async def test_parts_are_read_in_the_task_of_the_reader(run: Runner) -> None:
    await run(flows.llm(), "a")
    module = importlib.import_module("langchain_openai.chat_models._client_utils")
    readers = set()

    async def parts() -> AsyncIterator[int]:
        for part in range(3):
            readers.add(asyncio.current_task())
            yield part

    assert [part async for part in module._astream_with_chunk_timeout(parts(), 5)] == [0, 1, 2]
    assert readers == {asyncio.current_task()}


async def test_a_client_that_somebody_keeps_is_left_as_it_is(run: Runner) -> None:
    kept: list[Any] = []
    openai = importlib.import_module("openai")
    before = openai.resources.chat.AsyncChat.__init__

    def noted(resource: Any, client: Any) -> None:
        before(resource, client)
        kept.append(client)

    with mock.patch.object(openai.resources.chat.AsyncChat, "__init__", noted):
        await run(flows.llm(), "a")
    for _ in range(5):
        await asyncio.sleep(0)
    assert kept and all(client.chat.completions._client is client for client in kept)
    gone = [weakref.ref(client) for client in kept]
    kept.clear()
    gc.collect()
    assert all(client() is None for client in gone)


class _Body(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"{}"


class _Answers(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=_Body())


async def test_a_response_that_is_read_keeps_no_stream_that_keeps_it() -> None:
    async with httpx.AsyncClient(transport=http_clients._Async(_Answers())) as client:
        response = await client.get("http://it")
        assert response.json() == {} and response.elapsed.total_seconds() >= 0
        await response.aclose()
        gone = weakref.ref(response)
        del response
        assert gone() is None


class _Louder(httpx.AsyncByteStream):
    """What a hook puts around a response's body."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            yield part + b" "

    async def aclose(self) -> None:
        await self._inner.aclose()


async def test_what_a_hook_puts_around_a_body_stays() -> None:
    async def louder(response: httpx.Response) -> None:
        response.stream = _Louder(response.stream)

    transport = http_clients._Async(_Answers())
    async with httpx.AsyncClient(transport=transport, event_hooks={"response": [louder]}) as client:
        response = await client.get("http://it")
        assert response.text == "{} " and isinstance(response.stream, _Louder)


def test_clients_that_a_thread_makes_meanwhile_are_taken_too(run: Runner) -> None:
    remains = importlib.import_module("runtime.engine.remains")

    class Client:
        pass

    made, state = [Client() for _ in range(3)], mock.Mock(clients={}, loop=None)
    taken: list[Any] = []

    def take_apart(holder: list[Any]) -> Any:
        if holder[0] in made:
            taken.append(holder[0])
            if len(taken) < len(made):
                state.clients[len(taken)] = weakref.ref(made[len(taken)])
        return remains.Remains.APART

    state.clients[0] = weakref.ref(made[0])
    left_whole = mock.Mock()
    with mock.patch.object(remains, "take_apart", take_apart):
        remains._part([None], state, left_whole, True)
    assert taken == made and left_whole.call_count == 0


def test_a_client_that_cannot_be_noted_is_no_error(run: Runner) -> None:
    resource = importlib.import_module("openai._resource").SyncAPIResource

    class Client:
        __slots__ = ("delete", "get", "get_api_list", "patch", "post", "put")

    client = Client()
    for name in Client.__slots__:
        setattr(client, name, None)
    token = CURRENT.set(state := mock.Mock(clients={}, environ={}))
    try:
        resource(client)
    finally:
        CURRENT.reset(token)
    assert state.clients == {}


class _State(TypedDict):
    a: int
    b: int


@pytest.mark.parametrize("kind", ["dictionary", "commands", "nothing", "neither"])
def test_what_writes_a_nodes_result_does_not_keep_itself(off: Any, kind: str) -> None:
    graphs = importlib.import_module("langgraph.graph")
    command = importlib.import_module("langgraph.types").Command
    result = {
        "dictionary": {"a": 1, "c": 2},
        "commands": [command(update={"a": 1}), {"b": 2}, [command(update={"a": 3}), None], None],
        "nothing": None,
        "neither": 7,
    }[kind]

    def writer() -> Any:
        builder = graphs.StateGraph(_State)
        builder.add_node("node", lambda _state: result)
        builder.add_edge(graphs.START, "node")
        return builder.compile().nodes["node"].writers[0].writes[0].mapper

    def written(mapper: Any) -> Any:
        try:
            return mapper(result)
        except Exception as error:
            return type(error), str(error)

    mapper = writer()
    assert mapper.__name__ == "_get_updates"
    assert written(mapper) == written(off(writer))
    gone = weakref.ref(mapper)
    del mapper
    assert gone() is None


BLOCKS: dict[str, Any] = {
    "none": [],
    "text": "plain",
    "number": 5,
    "a text block": [{"type": "text", "text": "a"}],
    "untagged": [{"text": "a"}],
    "of old": [{"title": "Steps", "contents": [{"type": "text", "text": "a"}]}],
    "in text": ['{"type": "text", "text": "a"}', '"{\\"text\\": \\"b\\"}"', "3"],
    "one text": '{"text": "a"}',
    "a list in text": '[{"text": "a"}, 4]',
    "of no type": [{"type": "nothing"}],
    "of nothing": [{"a": 1}],
    "no JSON": ["{"],
    "a tuple": ({"text": "a"},),
    "a null": [None],
}


@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS.keys())
def test_blocks_of_a_message_are_read_alike(run: Runner, off: Any, blocks: Any) -> None:
    message = importlib.import_module("lfx.schema.message").Message
    models = message(text="", content_blocks=[{"text": "a"}]).content_blocks

    class Under(message):  # type: ignore[misc, valid-type]  # without types
        pass

    def read(kind: Any, value: Any) -> Any:
        try:
            return repr(kind(text="x", content_blocks=value).content_blocks)
        except Exception as error:
            return type(error), str(error)

    for kind in (message, Under):
        assert read(kind, blocks) == off(read, kind, blocks)
        assert read(kind, models) == off(read, kind, models)
    assert garbage_of(read, message, models) == 0
    assert garbage_of(off, read, message, models) > 0


def test_a_messages_validator_looks_as_it_did(run: Runner) -> None:
    message = importlib.import_module("lfx.schema.message").Message
    assert list(inspect.signature(message.validate_content_blocks).parameters) == ["value"]
    assert list(inspect.signature(message.__dict__["validate_content_blocks"].__func__).parameters) == ["cls", "value"]


def test_the_types_of_an_agents_state_are_made_once(off: Any) -> None:
    factory = importlib.import_module("langchain.agents.factory")
    middleware = importlib.import_module("langchain.agents.middleware.types")

    class More(middleware.AgentState):  # type: ignore[misc, name-defined]  # without types
        count: int

    def hints(types: Any) -> Any:
        return [(kind.__name__, get_type_hints(kind, include_extras=True)) for kind in types]

    for schemas in ([middleware.AgentState], [_State, middleware.AgentState], [middleware.AgentState, _State]):
        made = factory._resolve_schemas(schemas)
        assert factory._resolve_schemas(list(schemas)) == made
        own = off(factory._resolve_schemas, schemas)
        assert own != made and hints(own) == hints(made)
    for kind, schemas in {"made in a run": [More], "a number": [5], "a list": [[]], "an alias": [list[int]]}.items():
        told = [outcome(factory._resolve_schemas, schemas), off(outcome, factory._resolve_schemas, schemas)]
        assert told[0][0] == told[1][0] and (told[0][0] == "types" or told[0] == told[1]), kind
    gone = weakref.ref(factory._resolve_schemas([More])[0])
    gc.collect()
    assert gone() is None


def outcome(function: Any, *arguments: Any) -> Any:
    try:
        return "types", function(*arguments)
    except Exception as error:
        return type(error), str(error)


def test_a_components_cache_is_made_when_it_is_used(run: Runner, off: Any) -> None:
    component = importlib.import_module("lfx.custom.custom_component.component").Component
    cachetools = importlib.import_module("cachetools")
    own = off(component).cache
    assert type(own) is cachetools.TTLCache
    cache = component().cache
    assert isinstance(cache, cachetools.TTLCache) and (cache.maxsize, cache.ttl) == (own.maxsize, own.ttl)
    assert garbage_of(type(cache), 1024, 60) == 0
    assert garbage_of(type(own), 1024, 60) == 1
    copied = pickle.loads(pickle.dumps(component()))
    assert type(copied.cache) is cachetools.TTLCache
    uses: dict[str, Any] = {
        "in": lambda cache: 1 in cache,
        "set": lambda cache: [cache.__setitem__(key, key) for key in range(2000)] and len(cache),
        "get": lambda cache: cache.get(1, "none"),
        "expire": lambda cache: cache.expire(cache.timer() + 100),
        "clear": lambda cache: cache.clear(),
        "pop": lambda cache: cache.popitem(),
        "iter": sorted,
        "repr": repr,
        "size": lambda cache: cache.currsize,
        "copy": lambda cache: sorted(copy.copy(cache).items()),
        "deep copy": lambda cache: sorted(copy.deepcopy(cache).items()),
        "pickle": lambda cache: [type(each := pickle.loads(pickle.dumps(cache))), sorted(each.items())],
        "no attribute": lambda cache: cache.nothing,
    }
    for name, use in uses.items():
        for fill in (0, 3):
            told = []
            for cache in (off(component).cache, component().cache):
                cache.update((key, str(key)) for key in range(fill))
                try:
                    told.append(use(cache))
                except Exception as error:
                    told.append((type(error), str(error)))
                cache["after"] = 1
                assert cache["after"] == 1
            assert told[0] == told[1], name
