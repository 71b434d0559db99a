"""The command line: errors, exit codes, and that nothing heavy is imported for its help."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runtime.cli import main as cli
from runtime.errors import BrokerUnavailable, RouteNotFound, SettingsError

HEAVY = (
    "redis",
    "lfx",
    "langflow",
    "pydantic",
    "pydantic_settings",
    "structlog",
    "orjson",
    "watchfiles",
    "asyncio",
    "yaml",
)
COMMANDS = ("up", "worker", "send", "runs", "status", "flows", "dlq", "doctor", "redis")


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, runtime.cli.main; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & set(HEAVY)
    assert not {"rich.table", "rich.console"} & loaded


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name, "--help"]) == 0
    assert "Usage: headrace" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headrace ")


@pytest.mark.parametrize(
    "arguments",
    [["nothing"], ["send"], ["send", "hello"], ["status", "--nothing"], ["runs", "list", "--status", "x"],
     ["dlq", "requeue"], ["dlq", "drop", "--route", "hello"], ["send", "hello", "--input", "x", "--jsonl"]],
)  # fmt: skip
def test_wrong_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 2
    assert "Error" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"), [(BrokerUnavailable("gone"), 3), (SettingsError("typo"), 2), (RouteNotFound("none"), 1)]
)
def test_an_error_is_one_line_and_a_code(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.delenv("HEADRACE_LOG__LEVEL", raising=False)
    monkeypatch.setattr(cli, "_invoke", fail)
    assert cli.run([]) == code
    assert capsys.readouterr().err == f"headrace: {error}\n"


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(arguments: list[str]) -> int:
        raise RouteNotFound("none")

    monkeypatch.setenv("HEADRACE_LOG__LEVEL", "debug")
    monkeypatch.setattr(cli, "_invoke", fail)
    assert cli.run([]) == 1
    assert "Traceback" in capsys.readouterr().err
