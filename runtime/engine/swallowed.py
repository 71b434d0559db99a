"""Errors that an Agent answers with: asked for structured output, it turns its model's failure into data. Pure.

``{"content": "", "error": "Error code: 401 ..."}`` would go downstream as a success, and an outage of the provider
would empty a queue into such results. The exception behind it is kept here and raised when the component is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_STEPS = ("get_agent_requirements", "run_agent")


class Swallowed:
    """What one component instance's steps raised while it was built."""

    def __init__(self, component: Any) -> None:
        self._errors: list[Exception] = []
        if component is not None and hasattr(component, "json_response"):
            for name in _STEPS:
                if callable(step := getattr(component, name, None)):
                    component.__dict__[name] = self._kept(step)

    def check(self, results: Mapping[str, Any]) -> None:
        """Raise the exception that one of the component's results tells of in place of an answer."""
        for value in results.values():
            data = getattr(value, "data", None)
            if isinstance(data, Mapping) and not data.get("content") and "error" in data:
                for error in self._errors:
                    if str(error) == data["error"]:
                        raise error

    def _kept(self, step: Callable[..., Any]) -> Callable[..., Any]:
        async def kept(*args: Any, **kwargs: Any) -> Any:
            try:
                return await step(*args, **kwargs)
            except Exception as error:
                self._errors.append(error)
                raise

        return kept
