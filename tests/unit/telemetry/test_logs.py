"""One line per event, on stderr, with secrets masked, whoever writes it."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from runtime.settings import LogSettings
from runtime.telemetry import logs, outlet


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    out, err = capsys.readouterr()
    assert out == ""
    return [json.loads(line) for line in err.splitlines()]


def configure(level: str = "info", format: str = "json") -> None:
    logs.configure(LogSettings(level=level, format=format))


def test_a_line_has_time_level_name_and_action_first(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    logs.get_logger("headrace.worker").info("worker.ready", routes=3)
    [line] = told(capsys)
    assert list(line) == ["timestamp", "level", "logger", "event", "routes"]
    assert (line["level"], line["logger"], line["event"], line["routes"]) == (
        "info",
        "headrace.worker",
        "worker.ready",
        3,
    )


def test_below_the_level_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    configure("warning")
    logs.get_logger("headrace.worker").info("worker.ready")
    assert told(capsys) == []


def test_secrets_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    log = logs.get_logger("headrace.worker")
    log.info(
        "x", api_key="canary", url="redis://:canary@host/0", nested={"password": "canary"}, text="sk-canary0123456789"
    )
    try:
        raise ValueError("the key sk-canary0123456789 was refused")
    except ValueError:
        log.exception("y")
    err = capsys.readouterr().err
    assert "canary" not in err
    assert "Traceback" in err


@pytest.mark.parametrize("form", ["json", "console"])
def test_what_is_no_json_is_masked_too(capsys: pytest.CaptureFixture[str], form: str) -> None:
    configure(format=form)
    structlog.get_logger("library").warning(
        "x",
        error=ValueError("Authorization: Bearer canary.12345"),
        raw=b"api_key=canary22222",
        more=[{"k": KeyError("sk-canary01234567")}],
        password=bytearray(b"canary"),
    )
    err = capsys.readouterr().err
    assert "canary" not in err
    assert "Authorization" in err


def test_other_peoples_lines_go_the_same_way_from_warning_on(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("careful, %s", "password=canary")
    structlog.get_logger("engine").info("chatter")
    structlog.get_logger("engine").error("broken")
    lines = told(capsys)
    assert [(line["logger"], line["level"], line["event"]) for line in lines] == [
        ("library", "warning", "careful, password=***"),
        ("engine", "error", "broken"),
    ]


def test_debug_tells_all(capsys: pytest.CaptureFixture[str]) -> None:
    configure("debug")
    logging.getLogger("library").debug("chatter")
    assert [line["event"] for line in told(capsys)] == ["chatter"]


def test_warnings_of_python_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old", UserWarning, stacklevel=1)
    assert "old" in told(capsys)[0]["event"]


def test_what_is_not_json_is_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    logs.get_logger("headrace").info("x", value=object(), raw=b"\xff")
    assert "object" in told(capsys)[0]["value"]


_TEXTS = st.one_of(
    st.sampled_from(
        ["done", "sk-canary0123456789", "a=b", "api_key=canary22222", "://u:canary@h", "Bearer canary.12345"]
    ),
    st.sampled_from(['{"password": "canary"}', "é\ud800", "\n\t\x00", "eyJ", "Authorİzation: Basic dXNlcjpwYXNz"]),
    st.text(max_size=8),
)
_FIELDS = st.dictionaries(
    st.sampled_from(["route", "event_id", "token", "api_key", "logger", "level", "é", "code", "x" * 300, "secret"]),
    _TEXTS
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.lists(_TEXTS, max_size=2)
    | st.dictionaries(_TEXTS, _TEXTS, max_size=2)
    | st.builds(ValueError, _TEXTS)
    | st.binary(max_size=4),
    max_size=5,
)


@given(_TEXTS, _FIELDS, st.sampled_from(["headrace.worker", "library", ""]))
def test_a_line_that_is_let_through_is_as_if_it_was_masked(event: str, fields: dict[str, Any], name: str) -> None:
    """What is done for every line, without looking first."""
    given = {**fields, "event": event, "timestamp": "2026-01-01T00:00:00Z"}
    logger = logs._Stderr(name)
    masked = dict(logs._mask(logger, "info", dict(given)))
    ordered = {key: masked.pop(key) for key in ("timestamp", "level", "logger", "event") if key in masked} | masked
    expected = json.dumps(ordered, ensure_ascii=False, default=str)
    assert logs._as_json(logger, "info", dict(given)) == expected


def test_for_people_it_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    configure(format="console")
    logs.get_logger("headrace.worker").info("worker.ready", routes=3)
    err = capsys.readouterr().err
    assert "worker.ready" in err
    assert "routes=3" in err
    assert not err.startswith("{")


def test_a_broken_line_and_a_closed_stderr_harm_nobody(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure()
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logging.getLogger("library").error("%d", "not a number")
    with open("/dev/null", "w") as closed:
        monkeypatch.setattr(sys, "stderr", closed)
    logs.get_logger("headrace").error("lost")


def test_once_a_pipe_is_read_again_the_log_tells_of_what_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with open(reading, "rb", buffering=0) as pipe, open(writing, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        monkeypatch.setattr(logs._Config, "told_lost", 0)
        monkeypatch.setattr(outlet._Process, "stderr", None)
        outlet.guard()
        configure()
        log = logs.get_logger("headrace.test")
        sys.stderr.close()
        sys.stderr = None  # as a component may; other code's output and ours go on
        for _ in range(10):
            log.warning("much", what="x" * 1000)
        lines = pipe.read(65536)
        log.warning("again")
        log.warning("and again")
        lines += pipe.read(65536)
    names = [json.loads(line)["event"] for line in lines.splitlines()]
    assert names[-3:] == ["again", "output.lost", "and again"]
    assert set(names[:-3]) == {"much"}
