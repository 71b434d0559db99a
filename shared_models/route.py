"""The route spec: what a flow's YAML file may say. Every key is optional."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from shared_models.controls import check_callback_url
from shared_models.errors import EnvelopeInvalid
from shared_models.names import check_stream_name
from shared_models.webhooks import Scheme

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h|d)$")

NOT_YET_BUILT = frozenset({"order_by", "join"})
"""Keys that the design reserves and this version refuses."""


def parse_duration(value: object) -> float:
    """Seconds from ``500ms``, ``30s``, ``10m``, ``24h`` or ``7d``. Raises ValueError for anything else."""
    if isinstance(value, str) and (match := _DURATION.match(value.strip())):
        return float(match[1]) * _UNITS[match[2]]
    raise ValueError(f"{value!r} is not a duration; write a number and a unit: 500ms, 30s, 10m, 24h, 7d")


def format_duration(seconds: float) -> str:
    """The shortest spelling that ``parse_duration`` reads back."""
    for unit in ("d", "h", "m", "s"):
        amount = seconds / _UNITS[unit]
        if amount >= 1 and amount == int(amount):
            return f"{int(amount)}{unit}"
    return f"{seconds * 1000:.3f}".rstrip("0").rstrip(".") + "ms"


Duration = Annotated[float, BeforeValidator(lambda v: v if isinstance(v, float) else parse_duration(v))]
"""Seconds; written as ``500ms``, ``30s``, ``10m``."""

Expression = Annotated[str, Field(min_length=1, max_length=2048)]
"""A CEL expression over event, payload and, after the run, output."""


def _stream_name(value: str) -> str:
    try:
        return check_stream_name(value)
    except EnvelopeInvalid as error:
        # What the model's validation can tell with the key and the line.
        raise ValueError(error.message.removeprefix("stream: ")) from error


StreamName = Annotated[str, AfterValidator(_stream_name)]
"""A stream that a route may read or write."""


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RetryPolicy(_Spec):
    """How often and how late a failed event is tried again.

    The delay is random in ``[0, min(max, initial * factor^n)]``; or it is the next of ``delays``, a fifth more or less,
    after whose last the event has failed.
    """

    max_attempts: int = Field(default=3, ge=1, le=100)
    delays: Annotated[tuple[Annotated[Duration, Field(ge=0)], ...], Field(max_length=99)] = ()
    initial: Duration = 1.0
    factor: float = Field(default=2.0, ge=1.0, le=100.0)
    max: Duration = 60.0

    @model_validator(mode="before")
    @classmethod
    def _counted(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(delays := data.get("delays"), list | tuple) and delays:
            if data.get("max_attempts", len(delays) + 1) != len(delays) + 1:
                raise ValueError("delays say how many attempts there are: leave max_attempts out")
            return {**data, "max_attempts": len(delays) + 1}
        return data


class IdempotencySpec(_Spec):
    """What counts as a duplicate (``key``, default: the event's own key) and for how long after the end (``ttl``)."""

    key: Expression | None = None
    ttl: Duration = 86400.0


class PublishRule(_Spec):
    """Publish the outcome to stream ``to`` when ``when`` holds (always, if absent), with ``payload`` (a CEL map)."""

    to: StreamName
    when: Expression | None = None
    payload: Expression | None = None


class ResultsSpec(_Spec):
    """Where outcomes go that no rule claims (``stream``), and how many entries that stream keeps (``keep``)."""

    stream: StreamName | None = None
    keep: int = Field(default=10_000, ge=0)


class VariableSource(_Spec):
    """Where a variable's value comes from: exactly one of an environment variable, a file, a literal.

    ``default`` is the value where the environment variable or the file is absent or empty.
    """

    env: str | None = None
    file: str | None = None
    value: str | None = None
    default: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _literal(cls, data: Any) -> Any:
        if isinstance(data, str | int | float) and not isinstance(data, bool):
            return {"value": str(data)}
        return data

    @model_validator(mode="after")
    def _one(self) -> VariableSource:
        if sum(x is not None for x in (self.env, self.file, self.value)) != 1:
            raise ValueError("write {env: NAME}, {file: PATH} or the value itself")
        if self.value is not None and self.default is not None:
            raise ValueError("a default goes with env or file; write the value itself instead")
        return self


class TweaksPolicy(StrEnum):
    """Which of a flow's fields an event may set: none, the declared, any but the protected."""

    OFF = "off"
    DECLARED = "declared"
    PERMISSIVE = "permissive"


class Accelerators(_Spec):
    """Which of the engine's accelerators are used; ``accelerators: off`` means none."""

    classes: bool = True
    tls_contexts: bool = True
    container_host: bool = True
    services: bool = True
    json_copies: bool = True
    model_copies: bool = True
    display_text: bool = True
    credentials: bool = True
    http_clients: bool = True
    tool_schemas: bool = True
    provider_registry: bool = True
    request_bodies: bool = True
    untraced_calls: bool = True
    agent_functions: bool = True
    message_dumps: bool = True
    debug_texts: bool = True
    agent_events: bool = True
    graph_copies: bool = True
    client_lookups: bool = True
    ended_graphs: bool = True
    graph_walks: bool = True
    agent_nodes: bool = True
    stream_timeouts: bool = True
    model_clients: bool = True
    agent_states: bool = True
    component_caches: bool = True
    message_blocks: bool = True
    fork_audits: bool = True
    needed_bundles: bool = True

    @model_validator(mode="before")
    @classmethod
    def _all(cls, data: Any) -> Any:
        # One word for all; the fields know which words are a yes or a no.
        return dict.fromkeys(cls.model_fields, data) if isinstance(data, bool | str) else data

    @property
    def off(self) -> frozenset[str]:
        """The names of those that are not used."""
        switches = vars(self)
        return frozenset() if all(switches.values()) else frozenset(name for name, on in switches.items() if not on)


class SecretSource(_Spec):
    """Where a gateway finds a secret: one of an environment variable and a file. Never the secret itself."""

    env: str | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one(self) -> SecretSource:
        if (self.env is None) == (self.file is None):
            raise ValueError("write {env: NAME} or {file: /PATH}; a secret does not stand in a spec")
        if self.file is not None and not self.file.startswith("/"):
            raise ValueError("a gateway knows no flows folder: write the file's whole path")
        return self


class WebhookSpec(_Spec):
    """How a route's webhooks are signed.

    ``secrets`` are those that are live: two while one is rotated. ``tolerance`` is how far a signed time may be from
    now. ``tenant`` is whose its events are.
    """

    scheme: Scheme = "standard"
    secrets: Annotated[tuple[SecretSource, ...], Field(min_length=1, max_length=2)]
    tolerance: Annotated[Duration, Field(gt=0, le=43_200)] = 300.0
    tenant: str | None = Field(default=None, min_length=1, max_length=256)


_RATE = re.compile(r"^(\d+(?:\.\d+)?)\s*/\s*(s|m|h|d)$")


def parse_rate(value: object) -> float:
    """Events a second from ``50/s``, ``100/m``, ``1000/h``, ``10000/d``. Raises ValueError for anything else."""
    if isinstance(value, str) and (match := _RATE.match(value.strip())) and float(match[1]) > 0:
        return float(match[1]) / _UNITS[match[2]]
    raise ValueError(f"{value!r} is not a rate; write a number and a unit of time: 50/s, 100/m, 1000/h, 10000/d")


Rate = Annotated[float, BeforeValidator(lambda v: v if isinstance(v, float) else parse_rate(v)), Field(gt=0)]
"""Events a second; written as ``50/s``, ``100/m``."""


class Bounds(_Spec):
    """What a gateway takes: ``rate`` on average, ``burst`` at once (default: a second's worth), ``backlog`` waiting."""

    rate: Rate | None = None
    burst: int | None = Field(default=None, ge=1, le=1_000_000)
    backlog: int | None = Field(default=None, ge=1)


class LimitsSpec(Bounds):
    """A gateway's bounds for a route, and those for each of its tenants."""

    tenant: Bounds = Bounds()


def _callback_url(value: str) -> str:
    try:
        return check_callback_url(value, field="url")
    except EnvelopeInvalid as error:
        raise ValueError(error.message.removeprefix("url: ")) from error


CALLBACK_DELAYS = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds between attempts: the table of the Standard Webhooks specification."""


class CallbackSpec(_Spec):
    """Where a route's outcomes are told over HTTP, in the Standard Webhooks form.

    ``secrets`` sign it: two while one is rotated; none: the worker's own (``HEADRACE_CALLBACKS__SECRET``). ``events``
    are the outcomes that are told. ``allow_request``: an event may bring a URL of its own. ``delays`` are between
    attempts; ``concurrency`` is how many are on their way at once in a process.
    """

    url: Annotated[str, AfterValidator(_callback_url)] | None = None
    secrets: Annotated[tuple[SecretSource, ...], Field(max_length=2)] = ()
    events: Annotated[tuple[Literal["completed", "dead_lettered"], ...], Field(min_length=1)] = (
        "completed",
        "dead_lettered",
    )
    allow_request: bool = False
    delays: Annotated[tuple[Annotated[Duration, Field(ge=0)], ...], Field(max_length=99)] = CALLBACK_DELAYS
    concurrency: int = Field(default=4, ge=1, le=1000)

    @model_validator(mode="before")
    @classmethod
    def _address(cls, data: Any) -> Any:
        return {"url": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _some(self) -> CallbackSpec:
        if self.url is None and not self.allow_request:
            raise ValueError("write a url, or allow_request: true, or both")
        return self


class ScaleSpec(_Spec):
    """How many workers an autoscaler starts for a route: one for each ``target`` events, from ``min`` to ``max``.

    Events that wait, run or are delayed count. With ``min`` 0 there is none where there is nothing to do.
    """

    min: int = Field(default=0, ge=0, le=1000)
    max: int = Field(default=10, ge=1, le=1000)
    target: int = Field(default=10, ge=1, le=1_000_000)

    @model_validator(mode="after")
    def _ordered(self) -> ScaleSpec:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        return self


class EngineSpec(_Spec):
    """How the engine runs this route's flow."""

    accelerators: Accelerators = Accelerators()


class RouteSpec(_Spec):
    """A route's settings. Durations are seconds here and ``500ms``, ``30s``, ``10m`` in YAML."""

    stream: StreamName | None = None
    group: str = Field(default="headrace", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    enabled: bool = True
    concurrency: int | None = Field(default=None, ge=1, le=10_000)
    timeout: Annotated[Duration, Field(gt=0)] = 600.0
    retry: RetryPolicy = RetryPolicy()
    idempotency: IdempotencySpec = IdempotencySpec()
    input: Expression | None = None
    session: Expression | None = None
    publish: tuple[PublishRule, ...] = ()
    results: ResultsSpec = ResultsSpec()
    dead_letter: StreamName | None = None
    tweaks: TweaksPolicy | tuple[str, ...] = TweaksPolicy.OFF
    """A policy, or the list of ``component.field`` that events may set (which means ``declared``)."""
    variables: dict[str, VariableSource] = Field(default_factory=dict)
    event_variables: tuple[str, ...] | Literal["any"] = ()
    """The names of variables that an event may bring itself."""
    upgrade: Literal["none", "safe"] = "none"
    webhook: WebhookSpec | None = None
    callback: CallbackSpec | None = None
    limits: LimitsSpec = LimitsSpec()
    scale: ScaleSpec = ScaleSpec()
    isolation: Literal["shared", "exclusive"] = "shared"
    """exclusive: a process of its own, one run at a time, so that nothing it does to the process touches another."""

    tokens: bool = False
    """Whether every run tells its models' tokens and its components in its feed, as they come."""
    engine: EngineSpec = EngineSpec()

    @property
    def slots(self) -> int | None:
        """How many runs this route may have at once in a process; None: as many as the process."""
        return 1 if self.isolation == "exclusive" else self.concurrency

    @field_validator("group")
    @classmethod
    def _group(cls, value: str) -> str:
        if value == "pub":
            raise ValueError("the group name 'pub' is Headrace's own; use another")
        return value

    @field_validator("tweaks", mode="before")
    @classmethod
    def _yaml_off(cls, value: Any) -> Any:
        # YAML 1.1 reads a bare `off` as false.
        return TweaksPolicy.OFF if value is False else value
