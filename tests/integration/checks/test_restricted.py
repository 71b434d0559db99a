"""LANGFLOW_ALLOW_CUSTOM_COMPONENTS=false: only what is installed, or lies in LANGFLOW_COMPONENTS_PATH, runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import flows

ROOT = Path(__file__).parents[3]
DEADLINE = 180.0

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]

CURATED = flows.component("def work(self) -> Message:\n    return Message(text=self.text[::-1])", name="Reverser")
OTHER = flows.component("def work(self) -> Message:\n    return Message(text=self.text.upper())", name="Shouter")


def around(code: str, name: str) -> dict[str, object]:
    """ChatInput to a custom component to ChatOutput."""
    flow = flows.Flow(name)
    chat_in = flow.add("ChatInput", "ChatInput-in")
    custom = flow.custom(code, "Custom-it")
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(chat_in, "message", custom, "text")
    flow.connect(custom, "out", out, "input_value")
    return flow.export()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What the process says."""
    base = tmp_path_factory.mktemp("restricted")
    curated = base / "components" / "curated"
    curated.mkdir(parents=True)
    (curated / "__init__.py").touch()
    (curated / "reverser.py").write_text(CURATED)
    folder = base / "flows"
    folder.mkdir()
    for name, export in {
        "1-built-in": flows.hello().export(),
        "2-custom": around(OTHER, "Custom"),
        "3-built-in": flows.hello().export(),
        "4-custom": around(OTHER, "Custom"),
        "5-curated": around(CURATED, "Curated"),
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(export))
    environ = {
        **os.environ,
        "LANGFLOW_ALLOW_CUSTOM_COMPONENTS": "false",
        "LANGFLOW_COMPONENTS_PATH": str(base / "components"),
        "LANGFLOW_CONFIG_DIR": str(base),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.integration.checks.restricted", str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, timeout=DEADLINE, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.fixture(scope="module")
def outcomes(told: Mapping[str, Any]) -> Mapping[str, str]:
    """What became of each flow, in the order of their names."""
    found: Mapping[str, str] = told["outcomes"]
    return found


def test_a20_the_first_event_gets_the_verdict_of_later_ones(outcomes: Mapping[str, str]) -> None:
    assert outcomes["1-built-in"] == outcomes["3-built-in"] == "ran: hello"
    assert outcomes["2-custom"] == outcomes["4-custom"]


def test_a20_custom_code_is_refused_by_name(outcomes: Mapping[str, str]) -> None:
    assert not outcomes["2-custom"].startswith("ran")
    assert "Custom-it" in outcomes["2-custom"] and "custom" in outcomes["2-custom"]


def test_a19_components_of_the_components_path_are_found(outcomes: Mapping[str, str]) -> None:
    assert outcomes["5-curated"] == "ran: olleh"


def test_a23_nothing_is_reached(told: Mapping[str, Any]) -> None:
    assert told["reached"] == []
