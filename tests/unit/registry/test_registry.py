"""Scan after scan: what was good goes on until something good replaces it."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from runtime.registry import files
from runtime.registry.registry import Registry
from tests.unit.registry.folder import Folder, export


def test_nothing_changed_is_the_same_snapshot(flows: Folder) -> None:
    flows.flow("a.json")
    flows.write("b.json", "{")
    registry = Registry(flows.root)
    first = registry.rescan()
    assert registry.rescan() is first
    (flows.root / "a.json").touch()
    assert registry.rescan() is first


def test_a_changed_file_is_a_new_version_and_the_old_snapshot_stays_what_it_was(flows: Folder) -> None:
    flows.flow("a.json")
    flows.flow("b.json")
    registry = Registry(flows.root)
    before = registry.rescan()
    version = before.routes["a"].version
    flows.flow("a.json", export("changed"))
    after = registry.rescan()
    assert after.routes["a"].version != version == before.routes["a"].version
    assert after.routes["b"] is before.routes["b"]


@pytest.mark.parametrize("content", ["", '{"data": {"nodes": [{"id"', "{}"])
def test_a_broken_file_never_replaces_the_working_version(flows: Folder, content: str) -> None:
    flows.flow("a.json")
    registry = Registry(flows.root)
    good = registry.rescan().routes["a"]
    flows.write("a.json", content)
    snapshot = registry.rescan()
    kept = snapshot.routes["a"]
    assert (kept.version, kept.export) == (good.version, good.export)
    assert kept.stale
    assert [(problem.route, problem.code) for problem in snapshot.problems] == [("a", "flow_invalid")]
    assert registry.rescan() is snapshot
    flows.flow("a.json")
    assert registry.rescan().routes["a"] == good
    assert registry.rescan().problems == ()


def test_a_broken_spec_never_replaces_the_working_one(flows: Folder) -> None:
    flows.flow("a.json")
    flows.write("a.yaml", "stream: x")
    registry = Registry(flows.root)
    registry.rescan()
    flows.write("a.yaml", "strem: y")
    flows.flow("a.json", export("newer"))
    snapshot = registry.rescan()
    assert snapshot.routes["a"].stream == "x"
    assert snapshot.routes["a"].flow_name == "a"
    assert "did you mean stream?" in (snapshot.routes["a"].stale or "")


def test_a_removed_file_takes_its_route_along_even_if_it_was_broken(flows: Folder) -> None:
    path = flows.flow("a.json")
    flows.flow("b.json")
    registry = Registry(flows.root)
    registry.rescan()
    path.write_text("{")
    registry.rescan()
    path.unlink()
    snapshot = registry.rescan()
    assert (sorted(snapshot.routes), snapshot.problems) == (["b"], ())


def test_a_disabled_route_stops(flows: Folder) -> None:
    flows.flow("a.json")
    registry = Registry(flows.root)
    registry.rescan()
    flows.write("a.yaml", "enabled: false")
    snapshot = registry.rescan()
    assert (dict(snapshot.routes), sorted(snapshot.disabled)) == ({}, ["a"])


def test_a_broken_project_keeps_all_of_its_routes(flows: Folder) -> None:
    path = flows.flow("p.json", [export("a"), export("b")])
    registry = Registry(flows.root)
    registry.rescan()
    path.write_text(path.read_text()[:-10])
    assert {name: bool(route.stale) for name, route in registry.rescan().routes.items()} == {"a": True, "b": True}
    flows.flow("p.json", [export("b"), {"name": "c"}])
    snapshot = registry.rescan()
    assert {name: bool(route.stale) for name, route in snapshot.routes.items()} == {"b": False}
    flows.flow("p.json", [{"name": "b"}])
    assert registry.rescan().routes["b"].stale


def test_a_newcomer_with_a_taken_name_does_not_stop_the_old_route(flows: Folder) -> None:
    flows.flow("one/a.json")
    registry = Registry(flows.root)
    good = registry.rescan().routes["a"]
    flows.flow("two/a.json")
    snapshot = registry.rescan()
    assert snapshot.routes["a"].version == good.version
    assert snapshot.routes["a"].path == good.path
    assert "give routes of one name" in (snapshot.routes["a"].stale or "")
    (flows.root / "two/a.json").unlink()
    assert registry.rescan().routes["a"] == good


def test_a_newcomer_on_a_taken_stream_does_not_stop_the_old_route(flows: Folder) -> None:
    flows.flow("a.json")
    registry = Registry(flows.root)
    registry.rescan()
    flows.flow("b.json")
    flows.write("b.yaml", "stream: flows:a")
    snapshot = registry.rescan()
    assert sorted(snapshot.routes) == ["a"]
    assert "both read the stream 'flows:a'" in (snapshot.routes["a"].stale or "")
    assert {problem.route for problem in snapshot.problems} == {"a", "b"}


def test_a_newcomer_cannot_take_the_stream_of_a_route_that_is_kept(flows: Folder) -> None:
    flows.flow("a.json")
    flows.write("a.yaml", "stream: x")
    registry = Registry(flows.root)
    registry.rescan()
    flows.write("a.yaml", "stream: [")
    flows.flow("b.json")
    flows.write("b.yaml", "stream: x")
    snapshot = registry.rescan()
    assert {name: route.stream for name, route in snapshot.routes.items()} == {"a": "x"}


def test_refusing_one_route_may_put_another_in_conflict(flows: Folder) -> None:
    for name in "abc":
        flows.flow(f"{name}.json")
        flows.write(f"{name}.yaml", f"stream: s-{name}")
    registry = Registry(flows.root)
    registry.rescan()
    # a wants b's stream, so that both stay where they were; c wants the stream that a was about to leave.
    flows.write("a.yaml", "stream: s-b")
    flows.write("c.yaml", "stream: s-a")
    snapshot = registry.rescan()
    assert {name: route.stream for name, route in snapshot.routes.items()} == {"a": "s-a", "b": "s-b", "c": "s-c"}
    assert {problem.route for problem in snapshot.problems} == {"a", "b", "c"}


def test_two_routes_may_swap_their_streams(flows: Folder) -> None:
    for name, stream in (("a", "one"), ("b", "two")):
        flows.flow(f"{name}.json")
        flows.write(f"{name}.yaml", f"stream: {stream}")
    registry = Registry(flows.root)
    registry.rescan()
    flows.write("a.yaml", "stream: two")
    flows.write("b.yaml", "stream: one")
    snapshot = registry.rescan()
    assert {name: route.stream for name, route in snapshot.routes.items()} == {"a": "two", "b": "one"}
    assert snapshot.problems == ()


def test_a_folder_that_vanishes_whole_stops_nothing(flows: Folder) -> None:
    flows.flow("a.json")
    registry = Registry(flows.root)
    registry.rescan()
    shutil.rmtree(flows.root)
    snapshot = registry.rescan()
    assert "no such file" in (snapshot.routes["a"].stale or "")
    flows.root.mkdir()
    assert dict(registry.rescan().routes) == {}


def test_a_stored_file_makes_a_new_snapshot_but_no_new_version(flows: Folder) -> None:
    flows.flow("a.json")
    registry = Registry(flows.root)
    before = registry.rescan()
    flows.write("a.files/data.csv", "1")
    after = registry.rescan()
    assert after is not before
    assert after.routes["a"].version == before.routes["a"].version
    assert after.routes["a"].files_version != before.routes["a"].files_version == ""


def configmap(flows: Folder, generation: int, contents: dict[str, str]) -> None:
    """Write a generation as the kubelet does: a new folder, then one rename of the link that all files go through."""
    folder = flows.root / f"..2025_{generation}"
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_text(content)
    fresh = flows.root / "..data_tmp"
    fresh.symlink_to(folder.name)
    fresh.replace(flows.root / "..data")
    for name in contents:
        link = flows.root / name
        if not link.is_symlink():
            link.symlink_to(f"..data/{name}")
    for path in flows.root.iterdir():
        if path.is_symlink() and path.name != "..data" and path.name not in contents:
            path.unlink()
    for old in flows.root.glob("..2025_*"):
        if old != folder:
            shutil.rmtree(old)


def test_a_configmap_is_swapped_all_at_once(flows: Folder) -> None:
    flow = json.dumps(export("a"))
    configmap(flows, 1, {"a.json": flow, "a.yaml": "stream: one", "b.json": json.dumps(export("b"))})
    registry = Registry(flows.root)
    before = registry.rescan()
    assert {name: route.stream for name, route in before.routes.items()} == {"a": "one", "b": "flows:b"}
    assert before.problems == ()
    configmap(flows, 2, {"a.json": flow, "a.yaml": "stream: two"})
    assert registry.differs()
    after = registry.rescan()
    assert {name: route.stream for name, route in after.routes.items()} == {"a": "two"}
    assert after.problems == ()


def test_a_look_reads_no_files(flows: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    flows.flow("a.json")
    flows.age()
    registry = Registry(flows.root)
    registry.rescan()
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda _: pytest.fail("read"))
    assert not registry.differs()


@pytest.mark.parametrize("change", ["content", "add", "remove", "rename", "permission"])
def test_a_look_sees_every_change(flows: Folder, change: str) -> None:
    path = flows.flow("a.json")
    flows.age()
    registry = Registry(flows.root)
    registry.rescan()
    if change == "content":
        path.write_text("{}")
        os.utime(path, (1, 1))
    elif change == "add":
        (flows.root / "b.yaml").touch()
        os.utime(flows.root / "b.yaml", (1, 1))
    elif change == "remove":
        path.unlink()
    elif change == "rename":
        path.rename(flows.root / "c.json")
    else:
        path.chmod(0o600)
    assert registry.differs()


def test_what_changed_just_now_is_read_again_since_a_second_change_may_hide(flows: Folder) -> None:
    path = flows.flow("a.json", export("one"))
    registry = Registry(flows.root)
    registry.rescan()
    stamp = path.stat().st_mtime_ns
    path.write_text(path.read_text().replace("one", "two"))
    os.utime(path, ns=(stamp, stamp))
    assert registry.differs()
    assert registry.rescan().routes["a"].flow_name == "two"


def test_a_great_many_stored_files_do_not_make_a_look_slow(flows: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_STORED", 5)
    for number in range(9):
        flows.write(f"a.files/{number}", "x")
    assert len(files.look(flows.root).attachments[flows.root / "a.files"]) == 5
