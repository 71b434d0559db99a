"""Let a client of OpenAI's go with the run that made it.

Why: a client and its resources refer to each other. A run leaves two or four of them to the garbage collector, with the
HTTP clients that they have.
Safe because: they are noted, weakly, and taken apart after the run as its graph is: where nobody else has any of them
(see ``remains``).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target
from runtime.engine.state import CURRENT

_MODULE = "openai._resource"


def _install(patches: Patches) -> None:
    def make_init(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        @functools.wraps(original)
        def init(resource: Any, client: Any) -> None:
            original(resource, client)
            if not patches.off and (state := CURRENT.get()) is not None:
                with suppress(TypeError):  # a stand-in for one, which cannot be noted
                    state.clients[id(client)] = weakref.ref(client)

        return init

    def put(module: ModuleType) -> None:
        patches.replace(module.SyncAPIResource, "__init__", make_init)
        patches.replace(module.AsyncAPIResource, "__init__", make_init)

    patches.at_import(_MODULE, put)


MODEL_CLIENTS = Accelerator(
    name="model_clients",
    targets=(
        Target(_MODULE, "SyncAPIResource", frozenset({"8dada5fa31526db6"})),
        Target(_MODULE, "AsyncAPIResource", frozenset({"771f304c1b3c44cb"})),
    ),
    install=_install,
    package="openai",
)
