"""`headrace gateway` as a process, a worker behind it."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess

import httpx

from tests.support.gateway import gateway_process
from tests.support.harness import running, write_flow


async def test_an_event_over_http_runs_and_its_result_can_be_waited_for(server_url, tmp_path):
    write_flow(tmp_path / "flows", "hello")
    with gateway_process(server_url, tmp_path) as gateway:
        async with running(server_url, tmp_path / "flows"), httpx.AsyncClient(base_url=gateway.url) as http:
            done = await http.post("/v1/routes/hello/events?wait=20s", json={"input_value": "hi"})
            assert (done.status_code, done.json()["status"]) == (200, "completed"), done.text
            assert done.json()["result"]["text"] == "hi"
            preferred = await http.post("/v1/routes/hello/events", content="yo", headers={"prefer": "wait=20"} | TEXT)
            assert preferred.json()["result"]["text"] == "yo"
            if curl := shutil.which("curl"):
                words = [curl, "-sS", f"{gateway.url}/v1/routes/hello/events?wait=20s", "-d", '{"input_value": "curl"}']
                done = await asyncio.to_thread(subprocess.run, words, capture_output=True, timeout=30, check=True)
                assert json.loads(done.stdout)["result"]["text"] == "curl"
        assert await asyncio.to_thread(gateway.process.stop) == 0


TEXT = {"content-type": "text/plain"}
