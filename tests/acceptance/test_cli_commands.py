"""Every command, on a real server, with an echo worker in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.command import HEADRACE, Done, Running, headrace, in_process, running, worker
from tests.support.harness import write_flow
from tests.support.servers import RedisServer, valkey_binary

WAIT = "30"


@dataclass(frozen=True)
class Stack:
    """A server, a folder of flows and a worker that runs them."""

    url: str
    home: Path
    flows: Path
    worker: Running

    def __call__(self, *words: str, stdin: str | None = None, **environ: str) -> Done:
        """A command, where the URL is in the environment."""
        return headrace(
            *words, stdin=stdin, home=self.home, REDIS_URL=self.url, HEADRACE_FLOWS=str(self.flows), **environ
        )

    def json(self, *words: str, code: int = 0) -> Any:
        """What a command prints with --json. In this process: most of a command's time is its imports."""
        done = in_process(*words, "--json", REDIS_URL=self.url, HEADRACE_FLOWS=str(self.flows))
        assert done.code == code, done
        return json.loads(done.out)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("cli")
    flows = home / "flows"
    quick = {"retry": {"initial": "1ms", "max": "5ms"}}
    write_flow(flows, "hello", spec=quick)
    write_flow(flows, "first", spec={"stream": "jobs:in", "publish": [{"to": "jobs:next"}], **quick})
    write_flow(flows, "second", spec={"stream": "jobs:next", "publish": [{"to": "jobs:out"}], **quick})
    write_flow(flows, "keyless", spec=quick)
    with RedisServer(valkey_binary(), persistent=True) as server, worker(server.url, flows, home) as process:
        yield Stack(server.url, home, flows, process)


def dead_letter(stack: Stack, **payload: Any) -> dict[str, Any]:
    """An event that dies; its dead letter."""
    event = stack.json("send", "hello", "--payload", json.dumps({"fail": "event", **payload}), "--wait", WAIT, code=1)
    [letter] = [x for x in stack.json("dlq", "list") if x["event_id"] == event["event_id"]]
    return letter


def until_ended(stack: Stack, event_id: str, ending: str) -> None:
    """Wait on the feed of an event of route hello for a line of this type."""
    feed, last = f"hr:{{flows:hello}}:headrace:feed:{event_id}", "0"
    for _ in range(20):
        lines = json.loads(stack("redis", "--json", "XREAD", "BLOCK", "10000", "STREAMS", feed, last).out)
        assert lines, f"{event_id} has not ended"
        for last, fields in lines[0][1]:  # noqa: B007  the last id is read after the loop
            if fields[fields.index("type") + 1] == ending:
                return
    raise AssertionError(f"{event_id} has not become {ending}")


def completed(stack: Stack, event_id: str) -> dict[str, Any]:
    """The record of an event of route hello once it has completed."""
    until_ended(stack, event_id, "completed")
    return stack.json("runs", "show", event_id)


def died(stack: Stack, event_id: str) -> dict[str, Any]:
    """The dead letter of an event of route hello once it has died."""
    until_ended(stack, event_id, "dead_lettered")
    [letter] = [x for x in stack.json("dlq", "list") if x["event_id"] == event_id]
    return letter


# --- send -----------------------------------------------------------------------------------------------------------


def test_send_prints_the_event_id(stack: Stack) -> None:
    done = stack("send", "hello", "--input", "hi")
    assert (done.code, done.err) == (0, "")
    event_id = done.out.strip()
    assert len(event_id) == 36
    assert event_id[14] == "7"


def test_send_json_says_where_the_event_is(stack: Stack) -> None:
    event = stack.json("send", "hello", "--input", "hi")
    assert event["route"] == "hello"
    assert event["stream"] == "flows:hello"
    assert set(event) == {"event_id", "entry_id", "stream", "route"}


def test_wait_prints_the_text(stack: Stack) -> None:
    done = stack("send", "hello", "--input", "grüße\nzwei", "--wait", WAIT)
    assert (done.code, done.out, done.err) == (0, "grüße\nzwei\n", "")


def test_wait_json_prints_the_record(stack: Stack) -> None:
    record = stack.json("send", "hello", "--input", "hi", "--wait", WAIT)
    assert record["status"] == "completed"
    assert record["route"] == "hello"
    assert record["attempts"] == 1
    assert record["root_id"] == record["event_id"]
    assert record["parent_id"] is None
    assert record["dead_letter"] is None
    assert record["result"]["text"] == "hi"
    assert record["result"]["outputs"][0]["id"] == "echo"


def test_stdin_and_file(stack: Stack) -> None:
    assert stack("send", "hello", "-", "--wait", WAIT, stdin="piped\n").out == "piped\n"
    path = stack.home / "event.json"
    path.write_text('{"input_value": "from a file"}')
    assert stack("send", "hello", "--file", str(path), "--wait", WAIT).out == "from a file\n"


def test_a_dead_letter_exits_1_with_the_reason(stack: Stack) -> None:
    done = stack("send", "hello", "--payload", '{"fail": "event"}', "--wait", WAIT)
    assert (done.code, done.out) == (1, "")
    assert "the payload asked to fail" in done.err
    assert "echo_failed" in done.err


def test_a_dead_letter_is_in_the_record(stack: Stack) -> None:
    record = stack.json("send", "hello", "--payload", '{"fail": "moment"}', "--wait", WAIT, code=1)
    assert record["status"] == "dead_lettered"
    assert record["dead_letter"]["attempts"] == 3
    assert record["dead_letter"]["code"] == "echo_failed"
    assert "component_id" in record["dead_letter"]


def test_a_timeout_says_that_it_goes_on(stack: Stack) -> None:
    done = stack("send", "hello", "--payload", '{"sleep": 2, "input_value": "late"}', "--wait", "0.2")
    assert (done.code, done.out) == (1, "")
    assert "it goes on" in done.err
    shown = done.err.split("headrace runs show ")[1].strip()
    assert stack("runs", "show", shown).code == 0


def test_while_it_waits_it_says_why(stack: Stack) -> None:
    entry = {"stream": "flows:far", "group": "headrace", "dead_letters": "flows:far:dead_letter", "results": "r"}
    stack("redis", "HSET", "hr:{fleet}:routes", "far", json.dumps({"route": "far", **entry}))
    try:
        with running("send", "far", "--input", "x", "--follow", home=stack.home, REDIS_URL=stack.url) as waiting:
            waiting.wait_for("waits: no running worker has this route", stream="err")
            assert waiting.stop(signal.SIGINT) == 130, waiting.err
    finally:
        stack("redis", "HDEL", "hr:{fleet}:routes", "far")


def test_the_same_key_runs_once_and_is_answered_from_the_record(stack: Stack) -> None:
    first = stack.json("send", "hello", "--input", "one", "--key", "k-1", "--wait", WAIT)
    second = stack.json("send", "hello", "--input", "two", "--key", "k-1", "--wait", WAIT)
    assert second["duplicate_of"] == first["event_id"]
    assert second["result"]["text"] == "one"


def test_session_and_tenant_are_in_the_record(stack: Stack) -> None:
    record = stack.json("send", "hello", "--input", "x", "--session", "s", "--tenant", "t", "--wait", WAIT)
    assert (record["session_id"], record["tenant_id"]) == ("s", "t")


def test_follow_goes_over_routes(stack: Stack) -> None:
    done = stack("send", "jobs:in", "--input", "through", "--follow", "--wait", WAIT)
    assert (done.code, done.out) == (0, "through\n")


def test_follow_json_is_the_lineage(stack: Stack) -> None:
    first, second = stack.json("send", "first", "--input", "through", "--follow", "--wait", WAIT)
    assert (first["route"], second["route"]) == ("first", "second")
    assert second["parent_id"] == first["event_id"]
    assert second["root_id"] == first["root_id"] == first["event_id"]
    assert first["published"] == [{"stream": "jobs:next", "event_id": second["event_id"]}]


def test_follow_tells_a_dead_letter_of_a_later_step(stack: Stack) -> None:
    done = stack("send", "jobs:next", "--payload", '{"fail": "event"}', "--follow", "--wait", WAIT)
    assert done.code == 1
    assert "on route second was dead-lettered" in done.err


def test_an_unknown_route_names_near_ones(stack: Stack) -> None:
    done = stack("send", "helo", "--input", "hi")
    assert done.code == 1
    assert "did you mean hello?" in done.err


def test_a_stream_that_no_route_reads(stack: Stack) -> None:
    done = stack("send", "some:stream", "--input", "hi")
    assert done.code == 0
    assert stack("redis", "XLEN", "some:stream").out == "1\n"
    waited = stack("send", "some:stream", "--input", "hi", "--wait", "1")
    assert waited.code == 1
    assert "no route reads some:stream" in waited.err
    assert stack("redis", "XLEN", "some:stream").out == "1\n"


def test_jsonl_sends_each_line(stack: Stack) -> None:
    lines = "\n".join(json.dumps({"input_value": f"n{i}"}) for i in range(1200))
    sent = stack("send", "hello", "-", "--jsonl", stdin=lines)
    assert sent.code == 0
    assert len(set(sent.out.split())) == 1200


def test_jsonl_waits_and_prints_in_order(stack: Stack) -> None:
    lines = "\n".join(["plain", '{"input_value": "two"}', '{"fail": "event"}', "four"])
    done = stack("send", "hello", "-", "--jsonl", "--wait", WAIT, stdin=lines)
    assert (done.code, done.out) == (1, "plain\ntwo\nfour\n")
    path = stack.home / "events.jsonl"
    path.write_text(lines)
    records = stack.json("send", "hello", "--file", str(path), "--jsonl", "--wait", WAIT, code=1)
    assert [r["status"] for r in records] == ["completed", "completed", "dead_lettered", "completed"]


def test_jsonl_names_the_broken_line(stack: Stack) -> None:
    done = stack("send", "hello", "-", "--jsonl", stdin='{"a": 1}\n{"a": \n')
    assert done.code == 2
    assert "stdin, line 2, is not JSON" in done.err


# --- runs -----------------------------------------------------------------------------------------------------------


def test_runs_show(stack: Stack) -> None:
    record = stack.json("send", "hello", "--input", "look", "--wait", WAIT)
    assert stack.json("runs", "show", record["event_id"]) == record
    shown = stack("runs", "show", record["event_id"]).out
    assert "completed" in shown
    assert shown.endswith("look\n")


def test_runs_show_of_a_dead_letter_exits_1(stack: Stack) -> None:
    letter = dead_letter(stack)
    done = stack("runs", "show", letter["event_id"])
    assert done.code == 1
    assert "dead_lettered" in done.out


def test_runs_show_unknown(stack: Stack) -> None:
    done = stack("runs", "show", "nothing")
    assert done.code == 1
    assert "no run of event 'nothing' is known" in done.err


def test_runs_list(stack: Stack) -> None:
    record = stack.json("send", "first", "--input", "newest", "--wait", WAIT)
    dead = dead_letter(stack)
    everything = stack.json("runs", "list", "--count", "5")
    assert len(everything) == 5
    assert dead["event_id"] in [run["event_id"] for run in everything]
    of_route = stack.json("runs", "list", "--route", "first")
    assert {run["route"] for run in of_route} == {"first"}
    assert of_route[0]["event_id"] == record["event_id"]
    ended = stack.json("runs", "list", "--status", "dead_lettered")
    assert {run["status"] for run in ended} == {"dead_lettered"}
    assert record["event_id"] in stack("runs", "list", "--route", "first").out


# --- status ---------------------------------------------------------------------------------------------------------


def test_status(stack: Stack) -> None:
    dead_letter(stack)
    found = stack.json("status")
    routes = {route["route"]: route for route in found["routes"]}
    assert set(routes) == {"hello", "first", "second", "keyless"}
    hello = routes["hello"]
    assert hello["stream"] == "flows:hello"
    assert hello["ready"] is True
    assert hello["blocked"] is False
    assert hello["reason"] is None
    assert hello["dead"] >= 1
    assert hello["workers"] == 1
    for name in ("waiting", "running", "delayed", "dead", "length", "version", "oldest_waiting_ms"):
        assert name in hello
    [report] = found["workers"]
    assert psutil.Process(report["pid"]).parents()[1].pid == stack.worker.pid  # the supervisor, over its zygote
    assert found["totals"]["dead"] >= hello["dead"]
    assert "hello" in stack("status").out


def test_status_says_why_a_route_is_blocked(stack: Stack) -> None:
    done = stack("send", "keyless", "--payload", '{"fail": "route"}', "--wait", "3")
    assert done.code == 1
    assert "the route is blocked: the payload asked to fail" in done.err
    [route] = [r for r in stack.json("status")["routes"] if r["route"] == "keyless"]
    assert route["blocked"] is True
    assert route["reason"] == "the payload asked to fail"
    assert route["waiting"] + route["delayed"] == 1
    assert "blocked" in stack("status").out
    [listed] = [r for r in stack.json("flows", "list") if r["route"] == "keyless"]
    assert listed["blocked"] is True


# --- dlq ------------------------------------------------------------------------------------------------------------


def test_dlq_list_and_show(stack: Stack) -> None:
    letter = dead_letter(stack, input_value="keep me")
    assert letter["route"] == "hello"
    assert letter["code"] == "echo_failed"
    assert letter["reason"] == "the payload asked to fail"
    assert letter["attempts"] == 1
    assert json.loads(letter["fields"]["payload"])["input_value"] == "keep me"
    assert stack.json("dlq", "show", letter["id"]) == letter
    assert "keep me" in stack("dlq", "show", letter["id"]).out
    assert letter["id"] in stack("dlq", "list", "--route", "hello").out
    assert stack.json("dlq", "list", "--route", "second", "--error", "nothing") == []


def test_dlq_masks_secrets(stack: Stack) -> None:
    letter = dead_letter(stack, variables={"OPENAI_API_KEY": "sk-canary-0123456789abcdef"})
    for words in (["list"], ["show", letter["id"]], ["list", "--json"], ["show", letter["id"], "--json"]):
        assert "canary" not in stack("dlq", *words).out
    assert "canary" in stack("dlq", "show", letter["id"], "--raw").out


def test_dlq_requeue_by_id(stack: Stack) -> None:
    letter = dead_letter(stack)
    [again] = stack.json("dlq", "requeue", letter["id"])
    assert again["event_id"] == letter["event_id"]
    assert again["entry_id"]
    gone = stack("dlq", "requeue", letter["id"])
    assert gone.code == 1
    assert "there is no such dead letter" in gone.err


def test_dlq_edit_sends_the_event_again_with_another_payload(stack: Stack) -> None:
    letter = dead_letter(stack)
    done = stack("dlq", "edit", letter["id"], "--payload", '{"input_value": "mended"}')
    assert done.code == 0, done
    record = completed(stack, letter["event_id"])
    assert record["result"]["text"] == "mended"
    assert record["event_id"] == record["root_id"]


def test_dlq_edit_mends_an_entry_that_could_not_be_read(stack: Stack) -> None:
    stack("redis", "XADD", "flows:hello", "*", "payload", '{"input_value": "hel', "event_id", "torn")
    letter = died(stack, "torn")
    assert letter["fields"]["payload"] == '{"input_value": "hel'
    assert stack("dlq", "edit", letter["id"], "--payload", '{"input_value": "hello again"}').code == 0
    assert completed(stack, "torn")["result"]["text"] == "hello again"


def test_dlq_requeue_by_error_and_drop(stack: Stack) -> None:
    for route in ("hello", "second"):
        stack("send", route, "--payload", '{"fail": "event"}', "--wait", WAIT)
    dropped = stack.json("dlq", "drop", "--route", "second", "--all")
    assert {item["route"] for item in dropped} == {"second"}
    assert stack.json("dlq", "list", "--route", "second") == []
    again = stack.json("dlq", "requeue", "--error", "echo_failed", "--route", "hello")
    assert len(again) >= 1
    assert stack("dlq", "drop", "1-1").code == 1


# --- flows ----------------------------------------------------------------------------------------------------------


def test_flows_list(stack: Stack) -> None:
    rows = {row["route"]: row for row in stack.json("flows", "list")}
    assert rows["hello"]["ready"] is True
    assert rows["hello"]["running_version"] == rows["hello"]["version"]
    assert rows["hello"]["error"] is None
    assert "hello" in stack("flows", "list").out


def test_flows_list_shows_a_half_saved_file_and_what_keeps_running(stack: Stack) -> None:
    path = stack.flows / "first.json"
    whole = path.read_text()
    version = next(r for r in stack.json("flows", "list") if r["route"] == "first")["running_version"]
    try:
        path.write_text(whole[: len(whole) // 2])
        [row] = [r for r in stack.json("flows", "list") if r["route"] == "first"]
        assert row["running_version"] == version
        assert row["version"] is None
        assert row["error"]
        assert f"version {version[:7]} keeps running" in stack("flows", "list").out
        assert stack("send", "first", "--input", "still", "--wait", WAIT).out == "still\n"
    finally:
        path.write_text(whole)


def test_flows_list_without_redis_is_the_folder(stack: Stack) -> None:
    done = stack("flows", "list", "--json", "--redis-url", "redis://127.0.0.1:1/0")
    assert done.code == 3
    assert {row["route"] for row in json.loads(done.out)} >= {"hello", "first"}
    assert "only the folder is shown" in done.err


# --- redis, doctor --------------------------------------------------------------------------------------------------


def test_redis(stack: Stack) -> None:
    assert stack("redis", "PING").out == "PONG\n"
    assert stack("redis", "SET", "x", "-1").out == "OK\n"
    assert json.loads(stack("redis", "--json", "GET", "x").out) == "-1"
    refused = stack("redis", "GET")
    assert refused.code == 1
    assert "ERR wrong number of arguments" in refused.out
    assert stack("redis", stdin="SET y 'a b'\nGET y\n").out == "OK\na b\n"


def test_doctor(stack: Stack) -> None:
    checks = stack.json("doctor")
    assert {check["status"] for check in checks} <= {"ok", "warn"}
    named = {check["name"]: check for check in checks}
    assert "Valkey" in named["redis"]["detail"]
    assert named["redis eviction"]["status"] == "ok"
    assert named["redis persistence"]["status"] == "ok"
    stack("redis", "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        done = stack("doctor")
        assert done.code == 1
        assert "CONFIG SET maxmemory-policy noeviction" in done.out
    finally:
        stack("redis", "CONFIG", "SET", "maxmemory-policy", "noeviction")


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [["status"], ["send", "hello", "--input", "x"], ["runs", "list"], ["runs", "show", "x"], ["dlq", "list"],
     ["redis", "PING"], ["doctor"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_redis_unreachable_is_3(stack: Stack, words: list[str]) -> None:
    done = headrace(*words, home=stack.home, REDIS_URL="redis://:secret@127.0.0.1:1/0")
    assert done.code == 3, done
    assert "Traceback" not in done.err
    assert "secret" not in done.err + done.out


def test_no_redis_given_is_3_and_says_what_to_do(stack: Stack, tmp_path: Path) -> None:
    done = headrace("status", home=tmp_path)
    assert done.code == 3
    assert "headrace up" in done.err


def test_a_misspelt_setting_is_2(stack: Stack) -> None:
    done = stack("status", HEADRACE_REDIS__URI="redis://x")
    assert done.code == 2
    assert "did you mean HEADRACE_REDIS__URL?" in done.err


def test_ctrl_c_while_waiting_is_no_traceback(stack: Stack) -> None:
    words = ("send", "hello", "--payload", '{"sleep": 20}', "--wait", "60", "--json")
    with running(*words, home=stack.home, REDIS_URL=stack.url) as waiting:
        until_running(stack)
        assert waiting.stop(signal.SIGINT) == 130
        assert waiting.err == []


def until_running(stack: Stack) -> None:
    """Wait until the newest event of hello runs: a worker says so in its feed."""
    words = ("runs", "list", "--route", "hello", "--status", "running")
    deadline = time.monotonic() + 30
    while not stack.json(*words):
        assert time.monotonic() < deadline


def test_a_reader_that_leaves_is_no_traceback(stack: Stack) -> None:
    command = f"{HEADRACE} send hello - --jsonl --redis-url {stack.url} | head -1"
    done = subprocess.run(
        ["sh", "-c", command], input="x\n" * 5000, capture_output=True, text=True, check=False, cwd=stack.home
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
