"""What is found out once: of an agent's functions, and for a model's client."""

from __future__ import annotations

import functools
import inspect
import socket
import typing
from typing import Any
from unittest import mock

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine.accelerators import agent_functions, base, client_lookups

OFF = frozenset({"agent_functions", "client_lookups"})


@pytest.fixture
def _off() -> Any:
    token = base.OFF.set(OFF)
    yield
    base.OFF.reset(token)


def function(left: int, right: str = None, /, *rest: Any, named: None = None, **more: Any) -> bool: ...  # type: ignore[assignment, empty-body]  # noqa: RUF013


def plain(left: int, right: str = None, *rest: Any, **more: Any) -> bool:  # type: ignore[assignment]  # noqa: RUF013
    return bool(left or right or rest or more)


class Owner:
    def method(self, state: dict[str, Any]) -> str: ...  # type: ignore[empty-body]

    @classmethod
    def of_class(cls, state: dict[str, Any]) -> str: ...  # type: ignore[empty-body]


def wrapped() -> Any:
    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    return wrapper


def attributed() -> Any:
    def made(x: int) -> None: ...

    made.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
    return made


def closures() -> list[Any]:
    def make(value: Any) -> Any:
        def inner(state: dict[str, Any]) -> str:
            return str(value)

        return inner

    return [make(1), make(2)]


def renamed() -> Any:
    def made(x: int) -> None: ...

    made.__annotations__ = {"x": "str"}
    return made


def annotated_with_types() -> Any:
    def made(x) -> None: ...  # type: ignore[no-untyped-def]

    made.__annotations__ = {"x": int}
    return made


def with_default() -> Any:
    return lambda x=1: x


THINGS = [
    function,
    plain,
    Owner.method,
    Owner().method,
    Owner.of_class,
    wrapped(),
    attributed(),
    *closures(),
    renamed(),
    annotated_with_types(),
    with_default(),
    functools.partial(plain, 1),
    Owner,
    max,
]


@pytest.mark.usefixtures("engine")
def test_signatures_are_those_of_inspect() -> None:
    from langgraph._internal import _runnable
    from langgraph.graph import _branch, state

    for ask in (_runnable.inspect.signature, _branch.signature, state.signature):
        for _ in range(2):
            for thing in THINGS:
                try:
                    want: Any = inspect.signature(thing)
                except ValueError:
                    with pytest.raises(ValueError, match="signature"):
                        ask(thing)
                    continue
                assert ask(thing) == want and str(ask(thing)) == str(want)
        one, other = closures()
        assert ask(one) is ask(other), "the same code"
        assert ask(function, follow_wrapped=False) == inspect.signature(function)
    assert _runnable.inspect.Parameter is inspect.Parameter


@pytest.mark.usefixtures("engine", "_off")
def test_a_route_without_them_asks_each_time() -> None:
    from langgraph.graph import _branch

    one, other = closures()
    assert _branch.signature(one) is not _branch.signature(other)
    assert httpx.URL("http://off.test/")._uri_reference is not httpx.URL("http://off.test/")._uri_reference


@pytest.mark.usefixtures("engine")
def test_the_types_of_their_own_functions_are_kept_and_handed_out_as_copies() -> None:
    from langgraph.graph import _branch
    from langgraph.graph.message import add_messages
    from langgraph.pregel._write import ChannelWrite

    for thing in (ChannelWrite._write, plain, Owner().method, Owner, add_messages, renamed()):
        want = typing.get_type_hints(thing)
        for _ in range(2):
            got = _branch.get_type_hints(thing)
            assert got == want
            got["more"] = None
    assert _branch.get_type_hints(plain, include_extras=True) == typing.get_type_hints(plain)


def test_what_is_kept_is_bounded() -> None:
    told = agent_functions.Told(lambda it: it)
    for number in range(agent_functions.MAX_CODES + 10):
        assert told.of(number, number) == number
    assert len(told._kept) == 10
    failing = agent_functions.Told(lambda it: 1 / it)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            failing.of(0, 0)


# --- Addresses --------------------------------------------------------------------------------------------------------

ADDRESSES = [
    "http://127.0.0.2:8000/v1",
    "https://api.openai.com/v1/",
    "HTTPS://Exämple.COM:443/a/../b#part",
    "/relative/path",
    "",
    "http://[::1]:80/",
    "http://user:secret@host/",
    "http://host/?key=secret",
    "https://api.telegram.org/bot12345:SECRET/sendMessage",
    "https://hooks.slack.com/services/T000/B000/XXXX",
    "https://hooks.test/0a1b2c3d4e5f60718293",
    "http://host/" + "x" * 400,
    "http://ho st/",
]
KEPT = [*ADDRESSES[:2], "/relative/path", "", "http://[::1]:80/"]
"""Those in which no secret can be."""
WRONG = ["http://host:port/", "http://a\nb/", "x" * 70000, "http://[::1/"]


def _parser() -> tuple[Any, Any]:
    made = httpx._urlparse.urlparse
    original = getattr(made, "__wrapped__", made)
    return original, client_lookups.make_urlparse(original, lambda: False)


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses_are_parsed_as_by_httpx(address: str) -> None:
    original, remembered = _parser()
    want = original(address)
    for _ in range(2):
        assert remembered(address) == want and type(remembered(address)) is type(want)
    parts = {"scheme": want.scheme, "authority": want.authority, "path": want.path, "query": want.query}
    assert remembered("", **parts, fragment=want.fragment) == original("", **parts, fragment=want.fragment)
    assert (remembered(address) is remembered(address)) is (address in KEPT)
    changed = want.copy_with(path="/other")
    assert remembered(address) == want != changed


@pytest.mark.parametrize("address", WRONG)
def test_what_is_no_address_is_refused_each_time(address: str) -> None:
    original, remembered = _parser()
    for _ in range(2):
        with pytest.raises(httpx.InvalidURL) as theirs:
            original(address)
        with pytest.raises(httpx.InvalidURL) as ours:
            remembered(address)
        assert str(ours.value) == str(theirs.value)


@given(
    url=st.text(max_size=12) | st.sampled_from(ADDRESSES + WRONG),
    parts=st.dictionaries(
        st.sampled_from(["scheme", "authority", "path", "query", "fragment", "host", "port", "netloc", "username"]),
        st.none() | st.text(max_size=6) | st.sampled_from(["http", "host:1", "/a"]),
        max_size=3,
    ),
)
def test_any_parts_are_parsed_as_by_httpx(url: str, parts: dict[str, Any]) -> None:
    original, remembered = _parser()
    for _ in range(2):
        try:
            want: Any = original(url, **parts)
        except Exception as error:
            with pytest.raises(type(error)) as ours:
                remembered(url, **parts)
            assert str(ours.value) == str(error)
        else:
            assert remembered(url, **parts) == want


@pytest.mark.usefixtures("engine")
def test_an_address_is_taken_apart_once() -> None:
    one, other = (httpx.URL("http://taken-apart.test/v1") for _ in range(2))
    assert one._uri_reference is other._uri_reference
    assert one.copy_with(path="/v2") == httpx.URL("http://taken-apart.test/v2") and one.path == "/v1"
    assert httpx.URL("http://taken-apart.test/?key=x")._uri_reference is not httpx.URL("http://taken-apart.test/?key=x")


def _no_socket(*_: Any) -> Any:
    raise OSError(24, "Too many open files")


# --- Clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("engine")
def test_socket_options_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from langchain_openai.chat_models import _client_utils

    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, 9999, 1)]
    first = _client_utils._filter_supported(options)
    assert first == options[:1]
    first.append(("changed",))
    others = [*options[:1], (socket.IPPROTO_TCP, 9998, 1)]
    with monkeypatch.context() as none:
        none.setattr(socket, "socket", _no_socket)
        assert _client_utils._filter_supported(others) == others, "as without the accelerator"
        none.setattr(client_lookups.socket, "socket", _no_socket)
    assert _client_utils._filter_supported(others) == options[:1], "which was not kept"
    tried = mock.Mock(side_effect=socket.socket)
    monkeypatch.setattr(socket, "socket", tried)
    assert _client_utils._filter_supported(options) == options[:1] and not tried.called


@pytest.mark.usefixtures("engine")
def test_the_keys_of_a_models_profile_are_known_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from langchain_core.language_models import model_profile

    declared = model_profile.get_type_hints(model_profile.ModelProfile)
    assert declared == typing.get_type_hints(model_profile.ModelProfile)
    declared.clear()
    assert model_profile.get_type_hints(model_profile.ModelProfile) == typing.get_type_hints(model_profile.ModelProfile)
    assert model_profile.get_type_hints(Owner.method) == typing.get_type_hints(Owner.method)
    with pytest.warns(UserWarning, match="Unrecognized keys in model profile: \\['unknown'\\]"):
        model_profile._warn_unknown_profile_keys({"unknown": 1})
