"""Whose fault: by the chain of causes."""

from __future__ import annotations

import email.utils
import time
from types import SimpleNamespace

import pytest

from runtime.engine.faults import (
    MAX_TRACEBACK,
    Circumstances,
    classify,
    innermost,
    masker,
    retry_after,
    shorten,
    status_of,
)
from runtime.errors import EventFault, Fault, RouteFault, RunFailed
from shared_models.dead_letter import ErrorInfo


class ComponentBuildError(Exception):
    """As the engine's."""


class APIError(Exception):
    """As a provider's."""

    def __init__(self, message: str, status: int | None = None, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status_code = status
        self.response = SimpleNamespace(status_code=status, headers=headers or {})


APIError.__module__ = "openai._exceptions"


def wrapped(error: BaseException) -> BaseException:
    """As the engine wraps a component's exception."""
    try:
        try:
            raise ComponentBuildError(f"Error building Component X: {error}") from error
        except ComponentBuildError as inner:
            raise ValueError(f"Error running graph: {inner}") from inner
    except ValueError as outer:
        return outer


HERE = Circumstances(component_id="X-1", component_name="X")

CASES = [
    (APIError("no", 401), RouteFault, "credential_refused"),
    (APIError("no", 403), RouteFault, "credential_refused"),
    (APIError("no", 404), RouteFault, "model_unknown"),
    (APIError("pay", 402), RouteFault, "quota_exhausted"),
    (APIError("insufficient_quota", 429), RouteFault, "quota_exhausted"),
    (APIError("slow down", 429), RunFailed, "rate_limited"),
    (APIError("Your credit balance is too low", 400), RouteFault, "quota_exhausted"),
    (APIError("API key not valid. API_KEY_INVALID", 400), RouteFault, "credential_refused"),
    (APIError("model_not_found", 400), RouteFault, "model_unknown"),
    (APIError("too long", 400), EventFault, "provider_rejected"),
    (APIError("too big", 413), EventFault, "provider_rejected"),
    (APIError("odd", 418), RunFailed, "provider_failed"),
    (APIError("down", 503), RunFailed, "provider_failed"),
    (ModuleNotFoundError("No module named 'x'"), RouteFault, "package_missing"),
    (ImportError("Could not import x"), RouteFault, "package_missing"),
    (ValueError("OpenAI API key is required when using OpenAI provider"), RouteFault, "credential_missing"),
    (ValueError("A model selection is required"), RouteFault, "model_missing"),
    (ValueError("bad luck"), RunFailed, "component_failed"),
    (KeyError("k"), RunFailed, "component_failed"),
    (ConnectionResetError("gone"), RunFailed, "connection_failed"),
    (TimeoutError(), RunFailed, "connection_failed"),
    (MemoryError(), RunFailed, "component_failed"),
]


@pytest.mark.parametrize(
    ("error", "kind", "code"), CASES, ids=lambda v: str(v)[:40] if isinstance(v, Exception) else None
)
def test_the_kinds_of_failure(error: Exception, kind: type[Fault], code: str) -> None:
    fault = classify(wrapped(error), HERE)
    assert (type(fault), fault.info.code) == (kind, code)
    assert fault.info.retryable is (kind is RunFailed)
    assert fault.info.component_id == "X-1"
    assert fault.info.exception_type is not None
    assert fault.info.exception_type.endswith(type(error).__name__)


def test_a_status_of_no_provider_is_only_a_failure() -> None:
    error = APIError("not here", 404)
    error.__class__ = type("HTTPStatusError", (APIError,), {"__module__": "httpx"})
    type(error).__mro__[1].__module__ = "httpx"
    try:
        fault = classify(wrapped(error), HERE)
        assert (type(fault), fault.info.code) == (RunFailed, "http_failed")
        uses_model = Circumstances(component_id="X-1", component_name="X", uses_model=True)
        assert type(classify(wrapped(error), uses_model)) is RouteFault
    finally:
        APIError.__module__ = "openai._exceptions"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_the_event_brought_is_the_events_fault(status: int) -> None:
    about = Circumstances(component_id="X-1", component_name="X", brought=True)
    assert type(classify(wrapped(APIError("no", status)), about)) is EventFault


def test_a_fault_in_the_chain_stands() -> None:
    own = RouteFault(ErrorInfo(code="mine", message="mine"))
    assert classify(wrapped(own), HERE) is own


def test_the_component_speaks_not_the_wrappers() -> None:
    fault = classify(wrapped(ValueError("the table is empty")), HERE)
    assert fault.info.message == "component 'X' (X-1): the table is empty"
    assert fault.info.exception_type == "ValueError"


def test_a_re_raise_with_the_same_text_is_seen_through() -> None:
    try:
        try:
            raise APIError("no", 500)
        except APIError as error:
            raise ValueError(str(error)) from error
    except ValueError as outer:
        assert type(innermost([outer, outer.__cause__])) is APIError


def test_retry_after_in_all_its_forms() -> None:
    assert retry_after(APIError("x", 429, {"retry-after": "7"})) == 7.0
    assert retry_after(APIError("x", 429, {"retry-after-ms": "1500"})) == 1.5
    at = email.utils.formatdate(time.time() + 60, usegmt=True)
    assert 50 < (retry_after(APIError("x", 429, {"retry-after": at})) or 0) <= 60
    assert retry_after(APIError("x", 429, {"retry-after": "soon"})) is None
    assert retry_after(APIError("x", 429)) is None
    assert retry_after(ValueError("x")) is None
    assert retry_after(APIError("x", 429, {"retry-after": "-5"})) == 0.0


def test_statuses_however_they_are_spelt() -> None:
    boto = Exception("x")
    boto.response = {"ResponseMetadata": {"HTTPStatusCode": 403}}
    assert status_of(boto) == 403
    google = Exception("x")
    google.code = 429
    assert status_of(google) == 429
    named = Exception("x")
    named.code = "model_not_found"
    assert status_of(named) is None
    assert status_of(OSError(2, "x")) is None


def test_a_traceback_is_cut_in_the_middle() -> None:
    try:
        raise ValueError("x" * 20_000)
    except ValueError as error:
        told = classify(error, HERE).info.traceback or ""
    assert len(told.encode()) <= MAX_TRACEBACK
    assert told.startswith("Traceback")
    assert "[...]" in told
    assert told.rstrip().endswith("x")


def test_shortening_keeps_within_bytes_and_text_whole() -> None:
    assert len(shorten("\u00e9" * 5000, 1000).encode()) <= 1000
    assert shorten("short", 1000) == "short"


def test_masking() -> None:
    mask = masker({"KEY": "sk-secret", "LONGER": "sk-secret-and-more", "SHORT": "ab", "EMPTY": ""})
    assert mask("a sk-secret-and-more b sk-secret c ab") == "a ******** b ******** c ab"
    assert masker([])("x") == "x"
    about = Circumstances(component_id="X-1", component_name="X", mask=mask)
    info = classify(wrapped(RuntimeError("used sk-secret")), about).info
    assert "sk-secret" not in info.model_dump_json()
