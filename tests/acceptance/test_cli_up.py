"""``headrace up`` and ``headrace worker``: they start, say when they are ready, and end clearly however they end."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import psutil
import pytest

from runtime.broker.keys import RouteKeys
from shared_models.result import RunStatus
from tests.support.command import FAST, HEADRACE, Running, headrace, running
from tests.support.harness import DEADLINE, clean_environment, client, write_flow
from tests.support.servers import RedisServer, free_port, valkey_binary

ECHO = ("--engine", "echo")
UP = ("up", *ECHO, "--no-gateway")
"""Without a gateway a start costs a second less."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_flow(tmp_path / "flows", "hello")
    return tmp_path


@pytest.fixture
def server_url() -> Iterator[str]:
    with RedisServer(valkey_binary()) as server:
        yield server.url


def redis_url(home: Path) -> str:
    return (home / ".headrace" / "redis.url").read_text().strip()


def worker_pid(home: Path) -> int:
    """The supervisor's: a child of its zygote is what reports itself."""
    [worker] = json.loads(headrace("status", "--json", home=home).out)["workers"]
    return psutil.Process(int(worker["pid"])).parents()[1].pid


def assert_gone(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_up_has_an_archive_of_its_own(home: Path) -> None:
    with running("up", *ECHO, "--port", "0", home=home) as up:
        gateway = up.wait_for("http://").partition("http://")[2].partition("/")[0]
        async with httpx.AsyncClient(base_url=f"http://{gateway}") as http:
            text = "x" * 300_000
            done = await http.post("/v1/routes/hello/events?wait=20", json={"input_value": text})
        assert done.json().get("result", {}).get("text") == text, (done.text[:500], up.err)
        [kept] = [path for path in (home / ".headrace" / "archive").rglob("*") if path.is_file()]
        assert text in kept.read_text()


def test_up_says_ready_and_every_command_finds_it(home: Path) -> None:
    with running(*UP, home=home) as up:
        assert up.wait_for("ready").startswith("ready: 1 of 1 route in flows")
        assert "headrace send hello" in up.wait_for("send:")
        below = home / "some" / "where"
        below.mkdir(parents=True)
        sent = headrace("send", "hello", "--input", "hi", "--wait", "20", home=below)
        assert (sent.code, sent.out) == (0, "hi\n"), sent
        assert headrace("doctor", home=home).code == 0
        pid = worker_pid(home)
        assert up.stop(signal.SIGTERM) == 0
        assert_gone(pid)
    assert headrace("status", home=home).code == 3


def test_up_serves_http_and_says_where(home: Path) -> None:
    port = free_port()
    with running("up", *ECHO, "--port", str(port), home=home) as up:
        url = f"http://127.0.0.1:{port}"
        assert f"{url}/v1/routes/hello/events" in up.wait_for("http:")
        done = httpx.post(f"{url}/v1/routes/hello/events?wait=20s", json={"input_value": "hi"}, timeout=30)
        assert (done.status_code, done.json()["result"]["text"]) == (200, "hi"), done.text
        taken = Running(*UP, "--port", str(port), "--data", "other", home=home)
        with closing(taken):
            taken.wait_for("ready")
            assert taken.stop() == 0
            assert not any("http:" in line for line in taken.out)
        assert up.stop() == 0


def test_a_port_that_is_taken_ends_up_where_it_was_asked_for(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with running("up", *ECHO, "--port", str(port), home=home) as up:
            assert up.wait() == 2
            assert f"cannot listen on 127.0.0.1:{port}" in "\n".join(up.err)
            assert "the gateway has ended by itself" in "\n".join(up.err)


def test_ctrl_c_ends_it_and_what_waits_is_there_after_a_restart(home: Path) -> None:
    (home / "flows" / "hello.yaml").write_text("enabled: false\n")
    with running(*UP, home=home) as up:
        up.wait_for("ready")
        assert headrace("redis", "XADD", "flows:hello", "*", "input_value", "kept", home=home).code == 0
        assert up.stop(signal.SIGINT) == 0
    (home / "flows" / "hello.yaml").unlink()
    with running(*UP, home=home) as up:
        up.wait_for("ready")
        words = ("redis", "--json", "XREAD", "BLOCK", "20000", "STREAMS", "flows:hello:results", "0")
        [[_, [[_, fields]]]] = json.loads(headrace(*words, home=home).out)
        assert "kept" in fields[fields.index("payload") + 1]


def test_a_drain_finishes_what_runs(home: Path) -> None:
    with running(*UP, home=home) as up:
        up.wait_for("ready")
        payload = '{"sleep": 1.5, "input_value": "slow"}'
        event = json.loads(headrace("send", "hello", "--payload", payload, "--json", home=home).out)
        started(home, event["event_id"])
        url = redis_url(home)
        assert up.stop() == 0
    with running(*UP, home=home) as up:
        up.wait_for("ready")
        record = json.loads(headrace("runs", "show", event["event_id"], "--json", home=home).out)
        assert (record["status"], record["attempts"]) == ("completed", 1)
    assert url


def started(home: Path, event_id: str) -> None:
    """Wait until an event of hello runs."""
    feed = f"hr:{{flows:hello}}:headrace:feed:{event_id}"
    last = "0"
    for _ in range(5):
        words = ("redis", "--json", "XREAD", "BLOCK", "10000", "STREAMS", feed, last)
        for last, fields in json.loads(headrace(*words, home=home).out)[0][1]:  # noqa: B007  the next read begins behind the last line
            if "started" in fields:
                return
    raise AssertionError("it has not started")


def test_the_end_of_the_worker_ends_all(home: Path) -> None:
    with running(*UP, home=home) as up:
        up.wait_for("ready")
        os.kill(worker_pid(home), signal.SIGKILL)
        assert up.wait() == 1
        assert "the worker has ended by itself (killed by SIGKILL)" in "\n".join(up.err)
    assert headrace("status", home=home).code == 3


def test_the_end_of_valkey_ends_all(home: Path) -> None:
    with running(*UP, home=home) as up:
        up.wait_for("ready")
        pid = worker_pid(home)
        headrace("redis", "SHUTDOWN", "NOSAVE", home=home)
        assert up.wait() == 1
        assert "Valkey has ended by itself" in "\n".join(up.err)
        assert_gone(pid)


def test_nothing_is_left_when_up_is_killed(home: Path) -> None:
    with running(*UP, home=home) as up:
        up.wait_for("ready")
        pid = worker_pid(home)
        up.stop(signal.SIGKILL)
        wait_until_gone(pid)
    assert headrace("status", home=home).code == 3


def wait_until_gone(pid: int) -> None:
    """Wait for a process that is no child of ours; it is told to end when its parent is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(20_000), "the worker goes on without its parent"
    os.close(descriptor)


def test_up_with_a_redis_of_ones_own_starts_none(home: Path, server_url: str) -> None:
    with running(*UP, "--redis-url", server_url, home=home) as up:
        up.wait_for("ready")
        sent = headrace("send", "hello", "--input", "hi", "--wait", "20", "--redis-url", server_url, home=home)
        assert sent.out == "hi\n"
        assert not (home / ".headrace").exists()
        assert up.stop() == 0


def test_up_makes_the_flows_folder_and_sees_what_is_dropped_into_it(tmp_path: Path) -> None:
    with running(*UP, home=tmp_path) as up:
        assert up.wait_for("ready").startswith("ready: 0 of 0 routes")
        assert "drop an exported flow into flows" in up.wait_for("drop")
        write_flow(tmp_path / "flows", "dropped")
        words = ("redis", "--json", "XREAD", "BLOCK", "20000", "STREAMS", "flows:dropped:results", "0")
        assert headrace("redis", "XADD", "flows:dropped", "*", "input_value", "hi", home=tmp_path).code == 0
        assert json.loads(headrace(*words, home=tmp_path).out)


def test_up_tells_broken_files(home: Path) -> None:
    (home / "flows" / "broken.json").write_text('{"data": ')
    with running(*UP, home=home) as up:
        up.wait_for("broken.json", stream="err")
        up.wait_for("ready")


def test_the_demo_runs_both_branches_and_ends(tmp_path: Path) -> None:
    flows = tmp_path / "flows"
    write_flow(
        flows,
        "router",
        spec={
            "stream": "agent_jobs:ingress",
            "publish": [
                {"to": "agent_jobs:db", "when": "payload.input_value.contains('rows')"},
                {"to": "agent_jobs:code_gen", "when": "!payload.input_value.contains('rows')"},
            ],
        },
    )
    for name, stream in (("db", "agent_jobs:db"), ("code-gen", "agent_jobs:code_gen")):
        write_flow(flows, name, spec={"stream": stream, "publish": [{"to": "agent_results:final"}]})
    up = Running(*UP, "--exit-after-demo", home=tmp_path)
    try:
        assert up.wait(timeout=60) == 0
        told = "\n".join(up.out)
        assert "db -> agent_results:final" in told
        assert "code-gen -> agent_results:final" in told
    finally:
        up.close()


def test_worker_runs_only_what_it_is_told(home: Path, server_url: str) -> None:
    write_flow(home / "flows", "other")
    words = ("worker", *ECHO, "--only", "other", "--concurrency", "2", "--redis-url", server_url)
    with running(*words, home=home) as worker:
        assert worker.wait_for("ready") == "ready: 1 of 1 route"
        status = json.loads(headrace("status", "--json", "--redis-url", server_url, home=home).out)
        assert status["workers"][0]["concurrency"] == 2
        assert status["workers"][0]["routes"] == ["other"]
        assert worker.stop() == 0


def test_the_workers_log_is_json_lines_without_secrets(home: Path, server_url: str) -> None:
    words = ("worker", *ECHO, "--redis-url", server_url)
    with running(*words, home=home, HEADRACE_LOG__FORMAT="json", HEADRACE_LOG__LEVEL="debug") as worker:
        worker.wait_for("ready")
        sent = headrace(
            "send", "hello", "--payload", '{"input_value": "x", "api_key": "sk-canary-0123456789abcdef"}',
            "--wait", "20", "--redis-url", server_url, home=home,
        )  # fmt: skip
        assert sent.out == "x\n"
        assert worker.stop() == 0
    lines = [json.loads(line) for line in worker.err]
    assert all({"event", "level", "timestamp"} <= set(line) for line in lines)
    assert "canary" not in "\n".join(worker.err)


async def test_a_worker_whose_output_nobody_reads_goes_on(home: Path, server_url: str) -> None:
    """A log collector that is stuck: lines are lost, and neither events nor the lease nor a SIGTERM wait for it."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    async with client(server_url) as c:
        events = [await c.send("flows:hello", {"input_value": "x"}) for _ in range(100)]
        worker = subprocess.Popen(
            [HEADRACE, "worker", *ECHO],
            stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, cwd=home,
            env=clean_environment(home, REDIS_URL=server_url, **FAST),
        )  # fmt: skip
        try:
            for event in events:
                assert (await c.run(RouteKeys("flows:hello", "headrace"), event)).status is RunStatus.COMPLETED
            worker.terminate()
            assert worker.wait(DEADLINE) == 0
        finally:
            worker.kill()
            worker.wait()
            os.close(writing)
            os.close(reading)
