"""What `flows list` makes of the folder and of what workers say."""

from __future__ import annotations

import json
from pathlib import Path

from runtime.broker.fleet import RouteEntry, WorkerReport
from runtime.broker.streams import BlockInfo
from runtime.cli.flows import Running, join
from runtime.cli.results import unready
from runtime.registry.scan import scan
from tests.support.harness import write_flow


def entry(name: str, **more: object) -> RouteEntry:
    fields = {"stream": f"flows:{name}", "group": "headrace", "dead_letters": "d", "results": "r", "version": "v1"}
    return RouteEntry(route=name, **{**fields, **more})


def rows(folder: Path, running: Running | None = None) -> dict[str | None, dict[str, object]]:
    return {row["route"]: row for row in join(scan(folder), running)}


def test_without_workers_the_folder_is_told(tmp_path: Path) -> None:
    write_flow(tmp_path, "hello", spec={"stream": "in"})
    row = rows(tmp_path)["hello"]
    assert (row["stream"], row["ready"], row["running_version"], row["error"]) == ("in", None, None, None)
    assert row["version"]
    assert row["reason"] is None


def test_what_no_worker_has_registered_is_told(tmp_path: Path) -> None:
    write_flow(tmp_path, "hello")
    row = rows(tmp_path, Running({}, {}, {}))["hello"]
    assert (row["ready"], row["reason"]) == (False, "no worker has registered it")


def test_a_broken_file_is_told_with_the_version_that_runs(tmp_path: Path) -> None:
    (tmp_path / "hello.json").write_text('{"data": {"nodes": [')
    row = rows(tmp_path, Running({"hello": entry("hello")}, {"hello": None}, {"hello": None}))["hello"]
    assert row["version"] is None
    assert row["running_version"] == "v1"
    assert row["ready"] is True
    assert row["error"]


def test_a_disabled_flow_is_told(tmp_path: Path) -> None:
    write_flow(tmp_path, "hello", spec={"enabled": False})
    assert rows(tmp_path)["hello"]["enabled"] is False


def test_a_route_of_another_folder_is_told(tmp_path: Path) -> None:
    row = rows(tmp_path, Running({"far": entry("far")}, {"far": None}, {"far": None}))["far"]
    assert (row["path"], row["ready"]) == (None, True)


def test_a_blocked_route_says_why(tmp_path: Path) -> None:
    block = BlockInfo(code="x", reason="no key", component_id=None, since=0, next_probe=0)
    row = rows(tmp_path, Running({"far": entry("far")}, {"far": block}, {"far": None}))["far"]
    assert (row["blocked"], row["reason"]) == (True, "no key")


def test_every_row_is_json(tmp_path: Path) -> None:
    write_flow(tmp_path, "hello")
    (tmp_path / "bad.yaml").write_text("stream: [")
    assert json.loads(json.dumps(list(join(scan(tmp_path), None))))


def test_why_no_worker_runs_a_route() -> None:
    here, other = WorkerReport(name="a", routes=("hello",)), WorkerReport(name="b")
    assert unready(entry("hello"), [other, here]) is None
    assert unready(entry("hello"), []) == "no worker is running"
    assert unready(entry("hello"), [other]) == "no running worker has this route"
    assert unready(entry("hello", ready=False, reason="add x"), [other]) == "the route is not ready: add x"
