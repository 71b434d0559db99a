"""Whose fault a failed run is: the event's, the route's, or the moment's. Pure: decides by the chain of causes.

The engine wraps a component's exception in several of its own, so the text of the outermost says little and its type
nothing. What decides is the first HTTP status in the chain, then the kinds of exception in it.
"""

from __future__ import annotations

import email.utils
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.errors import EventFault, Fault, RouteFault, RunFailed
from shared_models.dead_letter import ErrorInfo

MAX_TRACEBACK = 8 * 1024
MAX_MESSAGE = 2000

PROVIDER_SDKS = frozenset(
    {
        *("openai", "anthropic", "google", "cohere", "groq", "mistralai", "ollama", "botocore", "azure", "together"),
        *("ibm_watsonx_ai", "huggingface_hub", "litellm", "voyageai", "fireworks", "cerebras", "replicate", "nvidia"),
    }
)
"""Packages whose exceptions come from a model provider. So do those of ``langchain_<provider>``."""

_WRAPPERS = frozenset({"ComponentBuildError", "ExceptionWithMessageError"})
_QUOTA = re.compile(
    r"insufficient_quota|billing_hard_limit|credit balance is too low|exceeded your current quota", re.I
)
_BAD_KEY = re.compile(r"api_key_invalid|api key not valid|invalid[ _]api[ _]key|incorrect api key", re.I)
_BAD_MODEL = re.compile(r"model_not_found|deploymentnotfound|does not exist or you do not have access", re.I)
_NO_KEY = re.compile(
    r"\bapi[ _-]?key\b.{0,80}\b(required|missing|not set|not provided|not found|must be (set|provided|passed))"
    r"|did not find \w*(api_key|token)",
    re.I | re.S,
)
_NO_MODEL = re.compile(r"no model selected|model selection is required|selected model is missing a provider", re.I)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known of a failed run beside its exception.

    ``uses_model`` tells whether the failed component calls a model; ``brought`` whether the event itself brought its
    credential or chose its model; ``brought_files`` whether the event brought files or set fields.
    """

    component_id: str | None = None
    component_name: str | None = None
    uses_model: bool = False
    brought: bool = False
    brought_files: bool = False
    mask: Callable[[str], str] = str


@dataclass(frozen=True, slots=True)
class _Verdict:
    kind: type[Fault]
    code: str
    status: int | None = None
    retry_after: float | None = None


def classify(error: BaseException, about: Circumstances) -> Fault:
    """The fault that ``error`` means, with all that is known of it. A Fault in the chain stands as it is."""
    chain = list(causes(error))
    own = next((e for e in chain if isinstance(e, Fault)), None)
    if own is not None:
        return own
    verdict = _by_status(chain, about) or _by_kind(chain, about)
    return verdict.kind(_info(verdict, chain, about))


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exceptions from the outermost in: each one's cause, else what it was raised in, hidden or not.

    Run Flow hides its child's error (``raise ... from None``), which is the one that says what happened.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup) and current.exceptions:
            current = current.exceptions[0]
        else:
            current = current.__cause__ or current.__context__


def _by_status(chain: list[BaseException], about: Circumstances) -> _Verdict | None:
    found = next(((e, s) for e in chain if (s := status_of(e)) is not None), None)
    if found is None:
        return None
    error, status = found
    text = " ".join(str(e) for e in chain)
    wait = retry_after(error)
    provider = about.uses_model or is_provider(error)
    if provider and (refused := _refused(status, text)):
        kind = EventFault if about.brought else RouteFault
        return _Verdict(kind, refused, status, wait)
    if provider and status in (400, 413, 422):
        return _Verdict(EventFault, "provider_rejected", status)
    if status == 429:
        return _Verdict(RunFailed, "rate_limited", status, wait)
    return _Verdict(RunFailed, "provider_failed" if provider else "http_failed", status, wait)


def _refused(status: int, text: str) -> str | None:
    """What a provider refuses the route for, if it does: its quota, its credential or its model."""
    if status == 402 or (status in (400, 403, 429) and _QUOTA.search(text)):
        return "quota_exhausted"
    if status in (401, 403) or (status == 400 and _BAD_KEY.search(text)):
        return "credential_refused"
    if status == 404 or (status == 400 and _BAD_MODEL.search(text)):
        return "model_unknown"
    return None


def _by_kind(chain: list[BaseException], about: Circumstances) -> _Verdict:
    names = {base.__name__ for error in chain for base in type(error).__mro__}
    table: tuple[tuple[set[str], type[Fault], str], ...] = (
        ({"NestedHITLUnsupportedError"}, EventFault, "flow_paused"),
        ({"TweakRefusedError"}, EventFault, "tweak_refused"),
        ({"LocalFileAccessError"}, EventFault if about.brought_files else RouteFault, "file_refused"),
        ({"ImportError"}, RouteFault, "package_missing"),
    )
    for kinds, fault, code in table:
        if names & kinds:
            return _Verdict(fault, code)
    if (lacks := _lacks(innermost(chain))) is not None:
        return _Verdict(EventFault if about.brought else RouteFault, lacks)
    if names & {"TransportError", "APIConnectionError", "ConnectionError", "TimeoutError"}:
        return _Verdict(RunFailed, "connection_failed")
    return _Verdict(RunFailed, "component_failed" if about.component_id else "run_failed")


def _lacks(root: BaseException) -> str | None:
    """What a component says it lacks: preflight finds most of it, but saved code has its own ways to read a key."""
    if not (isinstance(root, ValueError | LookupError) or is_provider(root)):
        return None
    text = str(root)
    if _NO_MODEL.search(text):
        return "model_missing"
    return "credential_missing" if _NO_KEY.search(text) else None


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an exception carries, however its library spells it."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        meta = response.get("ResponseMetadata")
        return _status(meta.get("HTTPStatusCode")) if isinstance(meta, Mapping) else None
    for owner, names in ((error, ("status_code", "http_status", "status", "code")), (response, ("status_code",))):
        for name in names:
            if (status := _status(getattr(owner, name, None))) is not None:
                return status
    return None


def _status(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599 else None


def retry_after(error: BaseException) -> float | None:
    """The seconds that an answer's Retry-After asks for: a number, or an HTTP date (RFC 9110, 10.2.3)."""
    headers = getattr(getattr(error, "response", None), "headers", None)
    return retry_after_of(headers) if headers is not None and hasattr(headers, "get") else None


def retry_after_of(headers: Any) -> float | None:
    """The same of an answer's headers."""
    try:
        if (millis := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(millis) / 1000)
        value = headers.get("retry-after")
        return None if value is None else max(0.0, _seconds(str(value).strip()))
    except (ValueError, TypeError, OverflowError):
        return None


def _seconds(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return email.utils.parsedate_to_datetime(value).timestamp() - time.time()


def is_provider(error: BaseException) -> bool:
    """Whether an exception is of a model provider's package, or derived from one that is."""
    tops = {base.__module__.partition(".")[0] for base in type(error).__mro__}
    return bool(tops & PROVIDER_SDKS) or any(top.startswith("langchain_") and top != "langchain_core" for top in tops)


def innermost(chain: list[BaseException]) -> BaseException:
    """The exception that tells most: the component's own, below the engine's wrappers and above its causes.

    The engine's wrappers repeat each other's text; a component's own exception is what its author meant to say. Of
    flows that run others, it is the innermost flow's.
    """
    wrappers = [place for place, error in enumerate(chain[:-1]) if type(error).__name__ in _WRAPPERS]
    return _unwrapped(chain, wrappers[-1] + 1 if wrappers else 0)


def _unwrapped(chain: list[BaseException], place: int) -> BaseException:
    """Skip re-raises that only repeat the text of what they wrap."""
    error = chain[place]
    for deeper in chain[place + 1 :]:
        if error.__suppress_context__ and str(error).startswith("Error running flow"):
            error = deeper  # Run Flow hides why its child did not run
        elif str(deeper) and str(deeper) in str(error) and type(error) in (ValueError, RuntimeError, Exception):
            error = deeper
    return error


def _info(verdict: _Verdict, chain: list[BaseException], about: Circumstances) -> ErrorInfo:
    root = innermost(chain)
    said = _MESSAGES.get(verdict.code) or str(root).strip() or type(root).__name__
    where = f"component {about.component_name!r} ({about.component_id}): " if about.component_id else ""
    return ErrorInfo(
        code=verdict.code,
        message=shorten(about.mask(f"{where}{said}"), MAX_MESSAGE),
        exception_type=f"{type(root).__module__}.{type(root).__qualname__}".removeprefix("builtins."),
        component_id=about.component_id,
        component_name=about.component_name,
        provider_status=verdict.status,
        retry_after=verdict.retry_after,
        retryable=verdict.kind is RunFailed,
        traceback=shorten(about.mask("".join(traceback.format_exception(root))), MAX_TRACEBACK),
    )


_MESSAGES = {
    "flow_paused": "a flow that another runs would ask a person (Human Input or a tool's approval), and only the "
    "outermost flow can wait for an answer; ask there",
}


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` bytes of UTF-8: the beginning and, more of it, the end."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode()
    mark = b"\n  [...]\n"
    head = limit // 4
    tail = limit - head - len(mark)
    return (raw[:head] + mark + raw[-tail:]).decode("utf-8", "ignore")


def masker(values: Mapping[str, str] | list[str]) -> Callable[[str], str]:
    """A function that hides these values in a text. Values shorter than four characters would hide half the text."""
    plain = values.values() if isinstance(values, Mapping) else values
    secrets = sorted({value for value in plain if len(value) >= 4}, key=len, reverse=True)
    if not secrets:
        return str
    pattern = re.compile("|".join(map(re.escape, secrets)))
    return lambda text: pattern.sub("********", text)
