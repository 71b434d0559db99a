"""What a run needs and does not have, found before anything of it runs. Pure.

The engine finds a missing key or model only when the component runs, as a plain ValueError, after others have already
called their providers; and it does not mind an empty required field at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping

from runtime.engine.base import FlowSource, RunRequest
from runtime.engine.catalog import Provider
from runtime.engine.needs import Need, NeedKind
from runtime.engine.requirements import Requirements
from runtime.errors import EventFault, RouteFault
from shared_models.dead_letter import ErrorInfo

NO_KEY = "not-needed"

_CODES = {
    NeedKind.MODEL: "model_missing",
    NeedKind.VARIABLE: "credential_missing",
    NeedKind.FIELD: "field_missing",
    NeedKind.FILE: "file_missing",
}


def resolve_variables(
    request: RunRequest,
    names: Collection[str],
    reserved: Callable[[str], bool],
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The run's variables: the event's, then the route's, then those of ``names`` from the environment.

    Read at each run, so a rotated key takes effect at once. A blank value is no value. ``reserved`` names are the
    engine's and the worker's own and are never read from the environment.
    """
    given = {name: value for name, value in request.variables.items() if value.strip()}
    found = {n: v for n in names if n not in given and not reserved(n) and (v := environ.get(n, "")).strip()}
    return found | given


def stand_in(variables: dict[str, str], names: Collection[str], providers: Iterable[Provider]) -> None:
    """Give a key that says nothing to providers whose calls go to a server of the user's own, where none is set.

    The engine asks for one in any case. A server that does want one answers 401, which names it.
    """
    for provider in providers:
        key = provider.key
        if key is not None and key in names and key not in variables and provider.own_server in variables:
            variables[key] = NO_KEY


def check(
    needed: Requirements,
    source: FlowSource,
    request: RunRequest,
    *,
    variables: Collection[str],
    tweaked: Collection[tuple[str, str]],
) -> None:
    """Raise for what is missing: EventFault where an event is to bring it, else RouteFault. All of it is named."""
    if fileless := needed.fileless(tweaked=tweaked):
        raise EventFault(_info(fileless))
    unmet = [c for c in needed.conditions if not c.met(variables=variables, tweaked=tweaked)]
    if not unmet:
        return
    # The route's own variables are always resolved by now: one that the spec knows and that is not there is one that
    # events may bring, and this one has not.
    expected = (source.variables - request.variables.keys()) | request.brought
    mine = [condition.need for condition in unmet if condition.variables & expected]
    if mine:
        raise EventFault(_info(mine))
    raise RouteFault(_info([condition.need for condition in unmet]))


def check_cells(unset: Iterable[Need]) -> None:
    """Raise RouteFault for table cells whose variable is not set."""
    if needs := list(unset):
        raise RouteFault(_info(needs))


def _info(needs: Collection[Need]) -> ErrorInfo:
    first = next(iter(needs))
    return ErrorInfo(
        code=_CODES.get(first.kind, "not_ready"),
        message="; ".join(dict.fromkeys(need.message for need in needs)),
        component_id=first.component_id,
        component_name=first.component_name,
    )
