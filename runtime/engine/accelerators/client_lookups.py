"""Find out once what a model's client finds out each time that it is made.

Why: a client of OpenAI's takes its address apart five times, tries which socket options the system knows on a socket
made for it, and evaluates the annotations of a class that does not change; each run makes two clients.
Safe because: what is kept is the outcome of functions of texts and numbers alone, which cannot be changed. Addresses
that may hold a secret are not kept: those with a password, a query, or a path of other than short lower-case words. Nor
is what has failed, or was found out without a socket.
"""

from __future__ import annotations

import functools
import re
import socket
from collections.abc import Callable
from types import ModuleType
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target

MAX_ADDRESSES = 512

_HOST = r"[A-Za-z0-9.:\[\]-]{0,100}"
_PATH = r"(?:/[a-z0-9._-]{0,16})*"
_KEPT = {
    "url": re.compile(rf"(?:https?://{_HOST})?{_PATH}"),
    "scheme": re.compile(r"https?|"),
    "authority": re.compile(_HOST),
    "path": re.compile(_PATH),
}
"""The parts of an address that is kept; a query or a fragment is None there."""

_PARSER = "httpx._urlparse"
_PROFILE = "langchain_core.language_models.model_profile"
_SOCKETS = "langchain_openai.chat_models._client_utils"


def make_urlparse(original: Callable[..., Any], is_off: Callable[[], bool]) -> Callable[..., Any]:
    """The ``urlparse`` of httpx, which remembers addresses."""

    @functools.lru_cache(MAX_ADDRESSES)
    def parsed(url: str, parts: tuple[tuple[str, str | None], ...]) -> Any:
        return original(url, **dict(parts))

    @functools.wraps(original)
    def urlparse(url: str = "", **parts: Any) -> Any:
        if is_off() or not _is_kept("url", url) or not all(map(_is_kept, parts, parts.values())):
            return original(url, **parts)
        return parsed(url, tuple(parts.items()))

    return urlparse


def _is_kept(name: str, value: object) -> bool:
    if (shape := _KEPT.get(name)) is not None:
        return type(value) is str and shape.fullmatch(value) is not None
    return name in ("query", "fragment") and value is None


def _make_hints(patches: Patches, known: type, original: Callable[..., Any]) -> Callable[..., Any]:
    kept = functools.lru_cache(1)(original)

    @functools.wraps(original)
    def get_type_hints(thing: Any, *how: Any, **more: Any) -> Any:
        if patches.off or how or more or thing is not known:
            return original(thing, *how, **more)
        return dict(kept(thing))

    return get_type_hints


def _make_supported(patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.lru_cache(16)
    def kept(options: tuple[Any, ...]) -> tuple[Any, ...]:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()  # without one it leaves all of them in
        return tuple(original(list(options)))

    @functools.wraps(original)
    def _filter_supported(opts: Any) -> Any:
        if patches.off:
            return original(opts)
        try:
            return list(kept(tuple(opts)))
        except Exception:  # noqa: BLE001  whatever a sandbox raises
            return original(opts)

    return _filter_supported


def _install(patches: Patches) -> None:
    parser, urls = patches.module(_PARSER), patches.module("httpx._urls")
    patches.replace(parser, "urlparse", lambda original: make_urlparse(original, lambda: patches.off))
    patches.replace(urls, "urlparse", lambda _: parser.urlparse)

    def put_profile(module: ModuleType) -> None:
        patches.replace(module, "get_type_hints", functools.partial(_make_hints, patches, module.ModelProfile))

    def put_sockets(module: ModuleType) -> None:
        patches.replace(module, "_filter_supported", functools.partial(_make_supported, patches))

    patches.at_import(_PROFILE, put_profile)
    patches.at_import(_SOCKETS, put_sockets)


CLIENT_LOOKUPS = Accelerator(
    name="client_lookups",
    targets=(
        Target(_PARSER, "urlparse", frozenset({"cddc3a045bf9a8cc"})),
        Target(_PROFILE, "_warn_unknown_profile_keys", frozenset({"58e5b6ab00cf792b"})),
        Target(_SOCKETS, "_filter_supported", frozenset({"6c6e9ec129181c60"})),
    ),
    install=_install,
    package="langchain_openai",
)
