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


class _Steps:
    """Which of LangSmith's steps around a call have nothing to do."""

    def __init__(self, helpers: ModuleType) -> None:
        self._helpers = helpers

    def idle(self, context: Context, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this one has nothing to do, for sure."""
        if self._helpers._runtime_override_active():  # somebody has threads of his own for them
            return False
        if step is self._helpers._setup_run:
            return not context.run(self._traced, kwargs)
        # The end comes with a function of the caller's own bound to it, for the outputs, or with none.
        bound = getattr(step, "keywords", {}).get("outputs_processor")
        ends = getattr(step, "func", step) is self._helpers._handle_container_end
        return ends and bound is None and bool(args) and args[0]["new_run"] is None

    def _traced(self, asked: dict[str, Any]) -> bool:
        if (asked.get("container_input") or {}).get("enabled") or asked.get("langsmith_extra"):
            return True
        config = (asked.get("kwargs") or {}).get("config")
        try:
            return bool(self._helpers.utils.tracing_is_enabled() or self._helpers._get_parent_run({}, config))
        except Exception:  # noqa: BLE001  LangSmith has its own way with what is wrong with its settings
            return True


def _install(patches: Patches) -> None:
    def put(helpers: ModuleType) -> None:
        steps = _Steps(helpers)

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            async def aio_to_thread(ctx: Context, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
                if not patches.off and steps.idle(ctx, func, args, kwargs):
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
