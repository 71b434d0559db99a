"""Langflow's own engine in a process of its own, told what to do on stdin: ``python -m tests.benchmarks.stock KIND``.

Each line in is JSON and gets one line of JSON out; the first line out says that it is ready. Kinds:

- ``engine FOLDER``: the engine called directly, a copy of the loaded graph per run. ``{"flow", "in_flight", "events",
  "known_host"}`` runs so many events; ``known_host`` answers the look-up of a container's host from memory, which
  takes out the resolver's part. Answers ``{"events", "wall", "cpu", "latencies"}``.
- ``plain URL FILE STREAM``: a worker that reads a stream and calls run_flow_from_json for each event; it ends by a
  signal. It answers each event with an entry in STREAM:results.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any


class Engine:
    """The engine as Langflow ships it: no services replaced, no accelerator, no heap frozen."""

    def __init__(self, folder: Path) -> None:
        from lfx.graph.graph.base import Graph

        self._templates = {
            path.stem: Graph.from_payload(json.loads(path.read_text())["data"], flow_id=str(uuid.uuid4()))
            for path in sorted(folder.glob("*.json"))
        }

    async def run(self, flow: str) -> float:
        """One run; how long it took, in ms. Raises where it gives no answer."""
        began = time.perf_counter()
        graph = self._templates[flow].copy_for_run(user_id=str(uuid.uuid4()))
        outputs = await graph.arun(
            [{"input_value": "What is 6 times 7?"}],
            inputs_components=[[]],
            types=["any"],
            outputs=[],
            fallback_to_env_vars=True,
        )
        assert outputs[0].outputs[0].results["message"].text, outputs
        return (time.perf_counter() - began) * 1000

    async def measure(self, flow: str, *, in_flight: int, events: int) -> dict[str, Any]:
        """So many runs, ``in_flight`` at once."""
        left, latencies = iter(range(events)), list[float]()

        async def lane() -> None:
            for _ in left:
                latencies.append(await self.run(flow))

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(lane() for _ in range(min(in_flight, events))))
        spent = time.process_time() - cpu
        return {"events": events, "wall": time.perf_counter() - began, "cpu": spent, "latencies": latencies}


async def _engine(folder: Path) -> None:
    import lfx.utils.util as engine_util

    engine, asked = Engine(folder), engine_util.get_container_host
    _tell({"ready": True})
    for line in iter(sys.stdin.readline, ""):
        task = json.loads(line)
        engine_util.get_container_host = functools.cache(asked) if task["known_host"] else asked
        await engine.run(task["flow"])
        _tell(await engine.measure(task["flow"], in_flight=task["in_flight"], events=task["events"]))


def _plain(url: str, file: Path, stream: str) -> None:
    import redis
    from lfx.load import run_flow_from_json

    client = redis.Redis.from_url(url, decode_responses=True, socket_timeout=60)
    client.xgroup_create(stream, "plain", id="0", mkstream=True)
    _tell({"ready": True})
    while True:
        for _, entries in client.xreadgroup("plain", "me", {stream: ">"}, count=10, block=5000) or []:
            for entry_id, fields in entries:
                [output] = run_flow_from_json(file, fields["input_value"], fallback_to_env_vars=True)
                answer = {"text": output.outputs[0].results["message"].text, "root_id": fields["root_id"]}
                client.xadd(f"{stream}:results", answer)
                client.xack(stream, "plain", entry_id)
                client.xdel(stream, entry_id)


def _tell(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    if kind == "engine":
        asyncio.run(_engine(Path(words[0])))
    else:
        _plain(words[0], Path(words[1]), words[2])
