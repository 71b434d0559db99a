"""A route spec from YAML: validated, its expressions checked, its mistakes told by line and nearest right key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from runtime.errors import RouteInvalid
from runtime.expressions import AFTER_RUN, BEFORE_RUN, problem
from runtime.registry.yaml_text import Document, Where
from shared_models.route import NOT_YET_BUILT, RouteSpec

_ALSO_CALLED = {
    "name": "the file's name is the route's name",
    "topic": "stream",
    "queue": "stream",
    "consumer_group": "group",
    "retries": "retry.max_attempts",
    "max_retries": "retry.max_attempts",
    "backoff": "retry",
    "output": "publish",
    "outputs": "publish",
    "dlq": "dead_letter",
    "env": "variables",
}
_CHOICES = {
    "tweaks": "off, declared, permissive, or a list of Component-id.field",
    "event_variables": "any, or a list of names",
    "upgrade": "none or safe",
}

_WITH_UNIT: tuple[Where, ...] = (
    ("timeout",), ("retry", "initial"), ("retry", "max"), ("idempotency", "ttl"), ("webhook", "tolerance"),
    ("limits", "rate"), ("limits", "tenant", "rate"),
)  # fmt: skip
"""Keys whose value has a unit."""

_LISTS_WITH_UNIT: tuple[Where, ...] = (("retry", "delays"), ("callback", "delays"))


def read_spec(document: Document) -> RouteSpec:
    """The spec. Raises RouteInvalid with every mistake, in the order of the lines."""
    value = {key: item for key, item in document.value.items() if item is not None}
    try:
        spec = RouteSpec.model_validate(_as_written(value, document))
    except ValidationError as error:
        faults = {_fault(found, document) for found in error.errors()}
    else:
        faults = set(_expression_faults(spec, document))
        if not faults:
            return spec
    raise RouteInvalid("; ".join(f"line {line}: {text}" for line, text in sorted(faults)))


def split_spec(document: Document) -> dict[str, Document]:
    """The specs of a file that holds several flows, by the name that the spec gives each. Raises RouteInvalid."""
    for key in document.value:
        if key != "flows":
            line = document.line((key,))
            how = f"write `flows:`, below it each route's name, and `{key}` below that"
            raise RouteInvalid(f"line {line}: the flow file holds several flows; {how}")
    named = document.value.get("flows") or {}
    if not isinstance(named, dict):
        raise RouteInvalid(f"line {document.line(('flows',))}: flows has to map each route's name to its spec")
    for name, item in named.items():
        if item is not None and not isinstance(item, dict):
            raise RouteInvalid(
                f"line {document.line(('flows', name))}: flows.{name} has to be a mapping of keys to values"
            )
    return {name: document.part("flows", name) for name in named}


def nearest(name: str, known: list[str]) -> str | None:
    """The known name that ``name`` may have meant."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), None)


def _as_written(value: dict[str, Any], document: Document) -> dict[str, Any]:
    """The values, but numbers as they were written where a number is not what is asked for.

    A variable's value is text (``01`` and ``1.10`` stay what they are), and a duration without a unit is a mistake that
    the model tells, not a number of seconds.
    """
    made = dict(value)
    if isinstance(variables := value.get("variables"), dict):
        made["variables"] = {name: _literal(item, ("variables", name), document) for name, item in variables.items()}
    for at in _WITH_UNIT:
        made = _rewritten(made, at, document.texts.get(at, ""))
    for at in _LISTS_WITH_UNIT:
        made = _with_texts(made, at, document.texts)
    return made


def _with_texts(value: dict[str, Any], at: Where, texts: Mapping[Where, str]) -> dict[str, Any]:
    """The values with the texts in the place of the numbers of a list, if there is one."""
    outer = value.get(str(at[0]))
    if not isinstance(outer, dict) or not isinstance(items := outer.get(str(at[1])), list):
        return value
    made = [texts.get((*at, n), item) if isinstance(item, float) else item for n, item in enumerate(items)]
    return {**value, str(at[0]): {**outer, str(at[1]): made}}


def _rewritten(value: dict[str, Any], at: Where, text: str) -> dict[str, Any]:
    """The values with the text in the place of a number, if there is one."""
    key, rest = at[0], at[1:]
    found = value.get(str(key))
    if not rest:
        return {**value, str(key): text} if isinstance(found, float) else value
    return {**value, str(key): _rewritten(found, rest, text)} if isinstance(found, dict) else value


def _literal(item: Any, at: Where, document: Document) -> Any:
    if isinstance(item, dict):
        return {key: _literal(inner, (*at, key), document) for key, inner in item.items()}
    return document.texts[at] if item is not None and at in document.texts else item


def _fault(error: ErrorDetails, document: Document) -> tuple[int, str]:
    at = error["loc"]
    line = document.line(at)
    top = str(at[0]) if at else ""
    if error["type"] == "extra_forbidden":
        return line, _unknown_key(at)
    if top in _CHOICES:
        return document.line((top,)), f"{top}: write {_CHOICES[top]}"
    if top == "variables" and len(at) > 1:
        # Never the value: it may be a secret.
        return line, f"{_dotted(at[:2])}: write {{env: NAME}}, {{file: PATH}} or the value itself, as text"
    text = error["msg"].removeprefix("Value error, ").replace("Input should", "should")
    text = re.sub(r"valid dictionary( or instance of \w+)?", "mapping of keys to values", text)
    text = text.replace("valid tuple", "list")
    if error["type"] == "missing":
        return line, f"{_dotted(at[:-1])}: {at[-1]} is missing"
    if error["type"] == "string_pattern_mismatch":
        text = "begins with a letter or digit and has up to 64 letters, digits, dots, dashes and underscores"
    given = error.get("input")
    shown = f" (it is {given!r})" if isinstance(given, str | int | float) and repr(given) not in text else ""
    return line, f"{_dotted(at)}: {text}{shown}"


def _unknown_key(at: Where) -> str:
    key = str(at[-1])
    if len(at) == 1 and key in NOT_YET_BUILT:
        return f"{key} is not built yet; remove it"
    if len(at) == 1 and key == "flows":
        return "flows is for a file that holds several flows; this one holds one: write its keys without it"
    known = _keys(_model_at(at[:-1]))
    inner = [] if at[:-1] else [f"{name}.{sub}" for name in known for sub in _keys(_model_of(RouteSpec, name))]
    hint = _ALSO_CALLED.get(key) if len(at) == 1 else None
    elsewhere = next((path for path in inner if path.endswith(f".{key}")), None)
    if (meant := hint or elsewhere or nearest(key, known)) is None:
        return f"unknown key {_dotted(at)}; known here: {', '.join(known)}"
    return f"unknown key {_dotted(at)}; " + (meant if " " in meant else f"did you mean {meant}?")


def _model_at(at: Where) -> type[BaseModel] | None:
    model: type[BaseModel] | None = RouteSpec
    for step in at:
        if isinstance(step, str) and model is not None:
            model = _model_of(model, step) or model
    return model


def _model_of(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    found = model.model_fields.get(name)
    return next(_models(found.annotation), None) if found else None


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _keys(model: type[BaseModel] | None) -> list[str]:
    return list(model.model_fields) if model else []


def _expression_faults(spec: RouteSpec, document: Document) -> Iterator[tuple[int, str]]:
    before = [(("input",), spec.input), (("session",), spec.session), (("idempotency", "key"), spec.idempotency.key)]
    after = [
        (("publish", place, name), getattr(rule, name))
        for place, rule in enumerate(spec.publish)
        for name in ("when", "payload")
    ]
    for found, allowed in ((before, BEFORE_RUN), (after, AFTER_RUN)):
        for at, source in found:
            if source is not None and (fault := problem(source, allowed)):
                yield document.line(at), f"{_dotted(at)}: {fault}"


def _dotted(at: Where) -> str:
    text = ""
    for step in at:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
