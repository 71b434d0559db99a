"""Find out once what a model's client finds out each time that it is made.

Why: a client of OpenAI's takes its address apart five times, tries which socket options the system knows on a socket
made for it, and evaluates the annotations of a class that does not change; each run makes two clients.
Safe because: what is kept is the outcome of functions of texts and numbers alone, which cannot be changed. Addresses
that may hold a secret, a password or a query, are not kept, nor what has failed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target

MAX_ADDRESSES = 512
LONGEST = 300
"""Characters of an address that is kept."""

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
        if is_off() or type(url) is not str or not _kept(url) or not all(map(_kept_part, parts, parts.values())):
            return original(url, **parts)
        return parsed(url, tuple(parts.items()))

    return urlparse


def _kept(text: str) -> bool:
    return len(text) <= LONGEST and "@" not in text and "?" not in text


def _kept_part(name: str, value: object) -> bool:
    if name in ("scheme", "authority", "path"):
        return type(value) is str and _kept(value)
    return name in ("query", "fragment") and value is None


def _install(patches: Patches) -> None:
    def is_off() -> bool:
        return patches.off

    parser, urls = patches.module(_PARSER), patches.module("httpx._urls")
    patches.replace(parser, "urlparse", lambda original: make_urlparse(original, is_off))
    patches.replace(urls, "urlparse", lambda _: parser.urlparse)

    def put_profile(module: ModuleType) -> None:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            kept = functools.lru_cache(1)(original)

            @functools.wraps(original)
            def get_type_hints(thing: Any, *how: Any, **more: Any) -> Any:
                if patches.off or how or more or thing is not module.ModelProfile:
                    return original(thing, *how, **more)
                return dict(kept(thing))

            return get_type_hints

        patches.replace(module, "get_type_hints", make)

    def put_sockets(module: ModuleType) -> None:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            kept = functools.lru_cache(16)(lambda options: tuple(original(list(options))))

            @functools.wraps(original)
            def _filter_supported(opts: Any) -> Any:
                return original(opts) if patches.off else list(kept(tuple(opts)))

            return _filter_supported

        patches.replace(module, "_filter_supported", make)

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
