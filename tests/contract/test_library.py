"""The client library in both major versions that may be installed: what holds with one holds with the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OTHER = Path(sys.prefix) / "redis-8"
"""Where `make` puts the version that is not in the lock."""

SUITE = (
    "tests/unit/broker/test_address.py",
    *(f"tests/contract/test_{name}.py" for name in ("connection", "batching", "fetch")),
    "tests/acceptance/test_life_of_an_event.py::test_xadd_alone_produces_a_result_and_a_completed_run",
)
"""All that is said over a connection: blocking reads, pipelines, scripts, errors; and a whole worker."""


def major(text: str) -> int:
    return int(text.partition(".")[0])


@pytest.fixture
def other() -> str:
    """The other version's number. Where it is not installed a test is skipped on a laptop and fails in CI."""
    found = {d.metadata["name"]: d.version for d in distributions(path=[str(OTHER)])}
    if "redis" not in found:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no redis-py in {OTHER}; `make .venv/.ready` adds it")
    return found["redis"]


@pytest.mark.timeout(240)
def test_t39_the_suite_runs_on_redis_py_7_and_8(other: str) -> None:
    """This run has the one; here the same tests run on the other, against Valkey."""
    [needed] = [
        line
        for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        if re.match(r"redis\b", line)
    ]
    lowest, beyond = (int(n) for n in re.findall(r"[>=<]+(\d+)", needed))
    assert {major(version("redis")), major(other)} == set(range(lowest, beyond)), "every version that may be installed"
    environment = {**os.environ, "PYTHONPATH": str(OTHER)}
    used = [sys.executable, "-c", "import redis; print(redis.__version__)"]
    told = subprocess.run(used, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=True)
    assert told.stdout.strip() == other
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-k", "not redis]", *SUITE]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
