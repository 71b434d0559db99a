"""What refuses an unsafe fork does so, and is asked by nothing else."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from runtime.engine.accelerators import fork_audits
from runtime.engine.accelerators.base import Patches
from tests.integration.engine.conftest import Runner

ASKED: list[str] = []


def refuse(event: str, _arguments: Any) -> None:
    """Stands in for filelock's function while a lock changes hands."""
    if event.endswith(("fork", "forkpty", "fork_exec")):
        ASKED.append(event)
        raise RuntimeError("unsafe")


@pytest.fixture
def refused(run: Runner) -> Iterator[None]:
    ASKED.clear()
    patches = Patches("fork_audits")
    with mock.patch.object(fork_audits, "_kept", [refuse]), mock.patch.object(sys, "addaudithook"):
        fork_audits._install(patches)
        yield
        patches.undo()
        sys.addaudithook.assert_called_once_with(refuse)  # type: ignore[attr-defined]  # a mock


def test_the_engine_is_imported_without_the_hook(run: Runner) -> None:
    assert [hook.__module__ for hook in fork_audits._kept] == ["filelock._api"]
    assert os.fork.__wrapped__.__module__ == "posix"  # type: ignore[attr-defined]  # it is wrapped


def fork() -> int:
    return os.fork()


def fork_with_terminal() -> tuple[int, int]:
    return os.forkpty()


FORKS: dict[str, Callable[[], Any]] = {
    "fork": fork,
    "posix": lambda: importlib.import_module("posix").fork(),
    "forkpty": fork_with_terminal,
    "a program": lambda: subprocess.run([sys.executable, "-c", ""], close_fds=True, cwd="/", check=True),
    "a process": lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
}


@pytest.mark.parametrize("way", FORKS)
def test_a_fork_that_is_unsafe_is_refused(refused: None, way: str) -> None:
    with pytest.raises(RuntimeError, match="unsafe"):
        FORKS[way]()
    assert len(ASKED) == 1


async def test_a_program_of_the_loops_is_refused(refused: None) -> None:
    with pytest.raises(RuntimeError, match="unsafe"):
        await asyncio.create_subprocess_exec(sys.executable, "-c", "", cwd="/", close_fds=True)
    assert ASKED == ["_posixsubprocess.fork_exec"]


def test_a_fork_that_is_safe_is_one(run: Runner) -> None:
    child = os.fork()
    if child == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert subprocess.run(["echo", "said"], capture_output=True, check=True, cwd="/").stdout == b"said\n"


def test_what_is_switched_off_or_fails_leaves_the_hook_to_python() -> None:
    added: list[Any] = []

    def hook(_event: str, _arguments: Any) -> None: ...

    hook.__module__, hook.__name__ = "filelock._api", "_audit_fork_safety"

    def other(_event: str, _arguments: Any) -> None: ...

    with mock.patch.object(fork_audits, "_kept", []), mock.patch.object(sys, "addaudithook", added.append):
        with fork_audits.without_hook({"fork_audits": False}):
            sys.addaudithook(hook)
        assert added == [hook]
        with pytest.raises(KeyError), fork_audits.without_hook({}):
            sys.addaudithook(other)
            sys.addaudithook(hook)
            assert added == [hook, other]
            raise KeyError
        assert added == [hook, other, hook]
        with fork_audits.without_hook({}):
            sys.addaudithook(hook)
        assert added == [hook, other, hook] and fork_audits._kept == [hook]
