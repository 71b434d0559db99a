"""The variables of one run: what the event brings, over what the route's spec gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.errors import EventFault, RouteFault
from runtime.registry.snapshot import Route
from shared_models.dead_letter import ErrorInfo
from shared_models.route import VariableSource


def resolve(route: Route, brought: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Every variable's value by name. Read at each run, so that a rotated file or variable takes effect at once.

    Raises EventFault for a variable that the event may not bring, RouteFault for a source that is not there.
    """
    values = {name: _value(route, name, source, environ) for name, source in route.spec.variables.items()}
    for name, value in brought.items():
        allowed = route.spec.event_variables
        if allowed != "any" and name not in allowed:
            raise EventFault(
                ErrorInfo(
                    code="variable_refused",
                    message=f"the event brings the variable {name!r}, which route {route.name} does not allow; "
                    f"add it to event_variables in the route's spec, or leave it out",
                )
            )
        if not isinstance(value, str):
            raise EventFault(
                ErrorInfo(code="variable_invalid", message=f"the event's variable {name!r} is not a string")
            )
        values[name] = value
    return values


def brought_by(payload: Mapping[str, Any], *, webhook: bool) -> Mapping[str, Any]:
    """The variables that an event brings; none where the whole payload is the flow's data."""
    brought = {} if webhook else payload.get("variables") or {}
    if not isinstance(brought, Mapping):
        raise EventFault(
            ErrorInfo(code="variable_invalid", message="payload.variables is not an object of names and strings")
        )
    return brought


def _value(route: Route, name: str, source: VariableSource, environ: Mapping[str, str]) -> str:
    if source.value is not None:
        return source.value
    found, why = _look_up(source, route.path.parent, environ)
    if not found and source.default is not None:
        return source.default
    if found is None:
        raise RouteFault(ErrorInfo(code="variable_missing", message=f"route {route.name}, variable {name}: {why}"))
    return found


def _look_up(source: VariableSource, folder: Path, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """What the environment or the file holds; if nothing, why."""
    if source.env is not None:
        return environ.get(source.env), f"the environment variable {source.env} is not set"
    path = folder / Path(source.file or "")
    try:
        return path.read_text(encoding="utf-8").strip(), ""
    except (OSError, UnicodeDecodeError) as error:
        return None, f"the file {path} cannot be read ({error})"
