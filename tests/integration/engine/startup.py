"""Run by test_startup in a process of its own: starts the engine twice, from a running loop, and says what it saw."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from runtime.engine.base import FlowSource, RunRequest
from runtime.engine.langflow import LangflowEngine
from tests.support.history import Sessions
from tests.support.offline import Offline


async def host(sources: dict[str, Any], url: str) -> dict[str, Any]:
    """What an async host does: prepare within its own loop, load, run, close."""
    engine = LangflowEngine()
    began = time.monotonic()
    await engine.prepare(concurrency=4)
    took = time.monotonic() - began
    said, late = {}, {}
    for name, export in sources.items():
        source = FlowSource(name, name, export, path(name), path(name).with_suffix(".files"))
        try:
            flow = await engine.load(source)
            request = RunRequest(
                "e1", {"input_value": "hi"}, session_id="s", variables={"OPENAI_COMPATIBLE_BASE_URL": url}
            )
            loaded = set(sys.modules)
            said[name] = (await engine.run(flow, request, Sessions(), lambda *_: None)).result.text
            late[name] = sorted(set(sys.modules) - loaded)
        except Exception as error:  # the test compares what was said
            said[name] = f"{type(error).__name__}: {error}"
    await engine.close()
    await asyncio.to_thread(time.sleep, 0)  # the host's loop still has threads
    return {"prepare": took, "said": said, "late": late}


def path(name: str) -> Any:
    """Where a flow would lie."""
    return Path("/nonexistent") / f"{name}.json"


def main() -> None:
    """Twice in one process, without a network."""
    given = json.load(sys.stdin)
    with Offline().guard() as offline:
        rounds = [asyncio.run(host(given["flows"], given["url"])) for _ in range(given.get("rounds", 2))]
        reached = sorted(offline.taken())
    # Not ru_maxrss, which begins with that of the process that started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) * 1024
    json.dump({"rounds": rounds, "reached": reached, "peak": peak}, sys.stdout)


if __name__ == "__main__":
    main()
