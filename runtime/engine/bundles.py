"""Extension bundles: packages that bring model providers and components. Only those a flow needs are loaded.

Loading all installed bundles takes 14 s and 300 MB; one takes a fraction of a second. Imports lfx; loaded by
LangflowEngine.prepare only.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import warnings
from collections.abc import Iterable
from functools import cache

import httpx
from lfx.extension.loader import load_extension

from runtime.engine import catalog
from runtime.errors import FlowUnready

_loaded: set[str] = set()
_lock = threading.Lock()


def load_providers(names: Iterable[str]) -> None:
    """Load the given model providers, each once per process: what brings it, and its client. Raises FlowUnready."""
    _import_common()
    roots = catalog.extension_roots()
    for name in names:
        provider = catalog.installed().provider(name)
        if provider and provider.module:
            _import_client(provider.module)
        distribution = provider.extension if provider else None
        if not distribution:
            continue
        with _lock:
            if distribution in _loaded:
                continue
            result = load_extension(roots[distribution], distribution=distribution)
            if result.errors:
                told = "; ".join(str(getattr(error, "message", error)) for error in result.errors)
                raise FlowUnready(needs=(f"mend or reinstall {distribution}, which brings {name!r}: {told}",))
            _loaded.add(distribution)


@cache
def _import_common() -> None:
    _import(_OF_ALL)


@cache
def _import_client(module: str) -> None:
    """Import a provider's client, and make what its first call makes once.

    The engine would do so in the first run of each process, on the event loop, for seconds, and processes would not
    share what that makes.
    """
    _import((module, *_LATE, *_LATE_OF.get(module, ())))
    for path in _MODELS_OF.get(module, ()):
        where, _, name = path.rpartition(".")
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            getattr(importlib.import_module(where), name).model_rebuild()
    httpx.HTTPTransport().close()  # reads the certificates, which the accelerators keep


def _import(modules: Iterable[str]) -> None:
    for name in modules:
        # What is wrong with one, the run will say; a later version may not have it.
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)


_OF_ALL = ("lfx.base.embeddings.model", "lfx.utils.python_repl_security")
"""What is imported with any first run only."""

_LATE = (
    "anyio._backends._asyncio", "langchain_core.messages.block_translators.langchain_v0",
    "langchain_core.tracers.context", "langchain_core.tracers.langchain", "langchain_core.tracers.run_collector",
    "langchain_core.tracers.stdout", "lfx.base.models.llm_callback_utils", "lfx.base.models.model_remediation",
    "lfx.base.tools.component_tool", "lfx.observability_llm_metrics", "lfx.schema.openai_responses_schemas",
    "lfx.schema.serialize",
)  # fmt: skip
"""What is imported with a model's first call only."""

_LATE_OF = {
    "langchain_openai": (
        "jiter", "openai.resources.chat.completions", "openai.lib.streaming.chat", "tiktoken_ext.openai_public",
    ),
}  # fmt: skip
"""The same, by client."""

_MODELS_OF = {
    "langchain_openai": (
        "lfx.schema.content_types.TextContent", "lfx.schema.content_types.ToolContent",
        "openai.types.chat.chat_completion_message.ChatCompletionMessage",
        "openai.types.chat.chat_completion.Choice", "openai.types.chat.chat_completion.ChatCompletion",
        "openai.types.chat.chat_completion_chunk.ChoiceDelta", "openai.types.chat.chat_completion_chunk.Choice",
        "openai.types.chat.chat_completion_chunk.ChatCompletionChunk",
    ),
}  # fmt: skip
"""What answers are read into, by client: pydantic puts the making of these classes' validators off, 0.2 s of work."""
