"""Call what LangSmith does not trace without a thread.

Why: around each call of an agent's middleware LangSmith goes to a thread twice, to begin and to end a trace, also where
there is none; five to ten times a run.
Safe because: without a trace the one only reads and copies context variables, and the other does nothing. Whether there
is one is asked as LangSmith asks it; where there is, or may be, the thread is as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import Context
from types import ModuleType
from typing import Any

from runtime.engine.accelerators.base import Accelerator, Patches, Target

_MODULE = "langsmith.run_helpers"


def _install(patches: Patches) -> None:
    def put(helpers: ModuleType) -> None:
        begin, end = helpers._setup_run, helpers._handle_container_end

        def traced(asked: dict[str, Any]) -> bool:
            if (asked.get("container_input") or {}).get("enabled") or asked.get("langsmith_extra"):
                return True
            config = (asked.get("kwargs") or {}).get("config")
            return bool(helpers.utils.tracing_is_enabled() or helpers._get_parent_run({}, config))

        def untraced(context: Context, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
            if step is begin:
                return not context.run(traced, kwargs)
            # It comes with what it does to the outputs bound to it.
            return getattr(step, "func", step) is end and bool(args) and args[0]["new_run"] is None

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            async def aio_to_thread(ctx: Context, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
                if not patches.off and untraced(ctx, func, args, kwargs):
                    return ctx.run(func, *args, **kwargs)
                return await original(ctx, func, *args, **kwargs)

            return aio_to_thread

        patches.replace(helpers.aitertools, "aio_to_thread", make)

    patches.at_import(_MODULE, put)


UNTRACED_CALLS = Accelerator(
    name="untraced_calls",
    targets=(
        Target(_MODULE, "_setup_run", frozenset({"b6510dc990940a3d"})),
        Target(_MODULE, "_handle_container_end", frozenset({"dacbaf0a5a698655"})),
        Target(_MODULE, "_container_end", frozenset({"679ed58fd21e6ce3"})),
        Target("langsmith._internal._aiter", "aio_to_thread", frozenset({"70706e3afde6f936"})),
        Target("langsmith._internal._aiter", "_default_aio_to_thread", frozenset({"ab2b5c768b512f63"})),
    ),
    install=_install,
    package="langsmith",
)
