"""An engine that runs no custom components, in a process of its own: the setting is read once per process.

``python restricted.py FLOWS`` runs every ``*.json`` of FLOWS in order and prints ``{"outcomes": {name: text or
reason}, "reached": [hosts]}``, the hosts being those that anything tried to reach, from the first import on.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.engine.base import FlowSource, RunRequest
from runtime.engine.langflow import LangflowEngine
from runtime.errors import EngineError
from tests.support.offline import Offline


class NoHistory:
    """Sessions without a past."""

    async def load(self, session: str) -> list[Mapping[str, Any]]:
        return []


async def attempt(engine: LangflowEngine, path: Path) -> str:
    """What becomes of one flow."""
    export = json.loads(path.read_text())
    source = FlowSource(path.stem, "0" * 64, export, path, path.with_suffix(".files"))
    try:
        flow = await engine.load(source)
    except EngineError as error:
        return f"{error.code}: {error.message}"
    request = RunRequest(event_id="event", payload={"input_value": "hello"})
    output = await engine.run(flow, request, NoHistory(), lambda *_: None)
    return f"ran: {output.result.text}"


async def main(folder: Path) -> dict[str, str]:
    """All flows, the first directly after the start."""
    engine = LangflowEngine()
    await engine.prepare(concurrency=1)
    return {path.stem: await attempt(engine, path) for path in sorted(folder.glob("*.json"))}


if __name__ == "__main__":
    answer = os.dup(1)
    os.dup2(2, 1)  # components print
    with os.fdopen(answer, "w") as out, Offline().guard() as offline:
        outcomes = asyncio.run(main(Path(sys.argv[1])))
        json.dump({"outcomes": outcomes, "reached": sorted(offline.taken())}, out)
