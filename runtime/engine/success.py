"""Success that is none: a run that ended without an exception and yet gave nothing. Pure."""

from __future__ import annotations

from collections.abc import Callable

from runtime.engine.faults import MAX_MESSAGE, shorten
from runtime.engine.inputs import event_fault
from runtime.errors import RunFailed
from shared_models.dead_letter import ErrorInfo
from shared_models.result import OutputKind, RunResult


def check_success(result: RunResult, *, mask: Callable[[str], str]) -> None:
    """Raise EventFault for a run without output, RunFailed for an error text in an answer's place."""
    error = next((output for output in result.outputs if output.kind is OutputKind.ERROR), None)
    if error is not None:
        raise RunFailed(
            ErrorInfo(
                code="component_failed",
                message=shorten(
                    mask(f"component {error.name!r} ({error.id}) answered an error: {error.text}"), MAX_MESSAGE
                ),
                component_id=error.id,
                component_name=error.name,
                retryable=True,
            )
        )
    if not result.outputs:
        raise event_fault("no_output", "the flow ended without any output: no component that ends it has run")
