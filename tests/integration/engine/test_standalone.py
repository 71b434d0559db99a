"""lfx without Langflow's server, though that is installed: what a start does not load, and who gets it all the same."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

from tests.support.harness import clean_environment

SCRIPT = """
import asyncio, sys
from runtime.engine.langflow import LangflowEngine

engine = LangflowEngine()
asyncio.run(engine.prepare(concurrency=1))
loaded = [name for name in sys.modules if name.partition(".")[0] == "langflow"]
assert not loaded, loaded
from runtime.engine import chat, subflows
import lfx.helpers
assert lfx.helpers.list_flows is subflows.list_flows
import lfx.base.tools.run_flow
assert lfx.base.tools.run_flow.run_flow is subflows.run_flow
import langflow.memory, langflow.helpers.flow
assert langflow.memory.astore_message is chat.astore_message
assert langflow.helpers.flow.list_flows is subflows.list_flows
from langflow.custom import Component
from lfx.custom import Component as Own
assert Component is Own
print("as it should be")
"""


@pytest.mark.skipif(find_spec("langflow") is None, reason="Langflow's server is not here")
def test_the_server_is_loaded_for_who_imports_it_only_and_then_has_our_functions(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env=clean_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip().endswith("as it should be"), done.stderr
