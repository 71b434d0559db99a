"""What the flows folder gives, looked at once."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from runtime.registry import export as exports
from runtime.registry.scan import scan
from runtime.registry.snapshot import Problem, Snapshot
from tests.unit.registry.folder import Folder, export


def only_problem(snapshot: Snapshot) -> Problem:
    assert len(snapshot.problems) == 1, snapshot.problems
    return snapshot.problems[0]


def test_a_file_is_a_route_by_itself(flows: Folder) -> None:
    path = flows.flow("Basic Prompting (1).json")
    route = scan(flows.root).routes["basic-prompting-1"]
    assert (route.stream, route.group) == ("flows:basic-prompting-1", "headrace")
    assert route.version == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (route.spec_version, route.spec_path, route.stale) == ("", None, None)
    assert (route.flow_id, route.flow_name) == ("id-of-Basic Prompting (1)", "Basic Prompting (1)")
    assert route.files_dir == flows.root / "Basic Prompting (1).files"


def test_a_spec_beside_it(flows: Folder) -> None:
    flows.flow("a.json")
    spec = flows.write("a.yaml", "stream: orders\ngroup: g\n")
    route = scan(flows.root).routes["a"]
    assert (route.stream, route.group, route.results, route.dead_letters) == (
        "orders",
        "g",
        "orders:results",
        "orders:dead_letter",
    )
    assert (route.spec_path, route.spec_version) == (spec, hashlib.sha256(spec.read_bytes()).hexdigest())


def test_only_names_with_the_ending_of_a_flow_are_flows(flows: Folder) -> None:
    for name in ("json", "zip", "yaml", "a.", "b.json.bak", "c.jsonl", "sub.json/README"):
        flows.flow(name)
    flows.flow("d.JSON")
    assert sorted(scan(flows.root).routes) == ["d"]


def test_sub_folders_are_read_and_hidden_names_are_not(flows: Folder) -> None:
    flows.flow("team/deep/a.json")
    flows.flow("b.JSON")
    flows.write("c.yml", "stream: x")
    flows.flow("c.json")
    for hidden in (".hidden.json", ".git/d.json", "team/.cache/e.json", "..data/f.json"):
        flows.flow(hidden)
    flows.flow("a.files/not-a-flow.json")
    flows.write("notes.txt", "x")
    snapshot = scan(flows.root)
    assert sorted(snapshot.routes) == ["a", "b", "c"]
    assert snapshot.routes["c"].stream == "x"
    assert snapshot.problems == ()


def test_links_are_followed_and_loops_end(flows: Folder, tmp_path: Path) -> None:
    elsewhere = Folder(tmp_path / "elsewhere")
    elsewhere.flow("a.json")
    (flows.root / "linked").symlink_to(elsewhere.root)
    (elsewhere.root / "back").symlink_to(elsewhere.root)
    (elsewhere.root / "up").symlink_to(flows.root)
    assert sorted(scan(flows.root).routes) == ["a"]


def test_a_name_taken_twice_is_refused_naming_both_files(flows: Folder) -> None:
    flows.flow("one/My Flow.json")
    flows.flow("two/my_flow.json")
    flows.flow("other.json")
    snapshot = scan(flows.root)
    assert sorted(snapshot.routes) == ["other"]
    assert len(snapshot.problems) == 2
    for problem in snapshot.problems:
        assert (problem.code, problem.route) == ("route_conflict", "my-flow")
        assert "flows/one/My Flow.json and flows/two/my_flow.json" in problem.message


def test_one_stream_and_group_for_two_routes_is_refused_naming_both_files(flows: Folder) -> None:
    flows.flow("a.json")
    flows.flow("b.json")
    flows.write("b.yaml", "stream: flows:a")
    snapshot = scan(flows.root)
    assert snapshot.routes == {}
    assert {problem.route for problem in snapshot.problems} == {"a", "b"}
    for problem in snapshot.problems:
        assert problem.code == "route_conflict"
        assert "flows/a.json and flows/b.json both read the stream 'flows:a' in the group 'headrace'" in problem.message
    flows.write("b.yaml", "stream: flows:a\ngroup: second")
    assert sorted(scan(flows.root).routes) == ["a", "b"]


def test_a_disabled_route_is_known_but_not_a_route(flows: Folder) -> None:
    flows.flow("a.json")
    flows.flow("b.json")
    flows.write("b.yaml", "enabled: false\nstream: flows:a")
    snapshot = scan(flows.root)
    assert (sorted(snapshot.routes), sorted(snapshot.disabled), snapshot.problems) == (["a"], ["b"], ())


def test_a_spec_without_a_flow(flows: Folder) -> None:
    flows.flow("orders.json")
    flows.write("order.yaml", "stream: x")
    problem = only_problem(scan(flows.root))
    assert problem.code == "route_invalid"
    assert problem.message == (
        "flows/order.yaml is a route spec without a flow: there is no order.json beside it; did you mean orders.yaml?"
    )


def test_two_specs_for_one_flow(flows: Folder) -> None:
    flows.flow("a.json")
    flows.write("a.yaml", "")
    flows.write("a.yml", "")
    assert "flows/a.yaml and flows/a.yml; keep one" in only_problem(scan(flows.root)).message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ('{"data": {"nodes": [', r"is not JSON: .* at line 1, column 21 \(the end: only a part of it is there\)"),
        ('{"data": }\n', "is not JSON: Expecting value at line 1, column 10"),
        (b"\xff\xfe{\x00}\x00", "is UTF-16; save it as UTF-8"),
        (b'{"name": "caf\xe9"}', r"is not UTF-8 \(byte 13\)"),
        ("[" * 100_000, "nested too deep|is not JSON"),
        ('"hello"', "is not a Langflow export: it holds a string, not an object"),
        ("12", "it holds a number"),
        ("null", "it holds null"),
        ("{}", "is not a Langflow export: it has no list data.nodes"),
        ('{"data": {}}', "it has no list data.nodes"),
        ('{"data": {"nodes": {}}}', "it has no list data.nodes"),
        ('{"data": {"nodes": [1]}}', "something other than objects"),
        ('{"data": {"nodes": [{}], "edges": {}}}', "data.edges is not a list"),
        ('{"data": {"nodes": []}}', "has no components"),
        ('{"flows": []}', "is a project export without flows"),
        ("[]", "is a project export without flows"),
        ('{"data": {"nodes": [{}]}, "is_component": true}', "is a saved component, not a flow"),
        ("9" * 5000, "is not JSON: Exceeds the limit"),
    ],
)
def test_what_is_not_an_export_is_told_in_a_sentence(flows: Folder, content: str | bytes, message: str) -> None:
    path = flows.write("a.json", content)
    snapshot = scan(flows.root)
    problem = only_problem(snapshot)
    assert snapshot.routes == {}
    assert (problem.path, problem.route, problem.code) == (path, "a", "flow_invalid")
    assert problem.message.startswith("flows/a.json ")
    assert re.search(message, problem.message)


def test_a_file_that_is_too_large_is_not_read(flows: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    flows.flow("a.json")
    monkeypatch.setattr("runtime.registry.candidates.MAX_FILE", 10)
    assert "a flow file may have at most 10" in only_problem(scan(flows.root)).message


def test_a_bare_graph_gets_its_envelope(flows: Folder) -> None:
    flows.flow("a.json", {"nodes": [{"id": "x"}], "edges": [], "viewport": {}, "name": "N"})
    route = scan(flows.root).routes["a"]
    assert route.export == {"name": "N", "data": {"nodes": [{"id": "x"}], "edges": []}}


def test_a_byte_order_mark_is_no_fault(flows: Folder) -> None:
    flows.write("a.json", b"\xef\xbb\xbf" + json.dumps(export()).encode())
    assert sorted(scan(flows.root).routes) == ["a"]


@pytest.mark.parametrize("wrap", [lambda several: several, lambda several: {"flows": several, "folder_name": "P"}])
def test_each_flow_of_a_project_is_a_route_named_by_the_flow(flows: Folder, wrap: Any) -> None:
    component = {**export("Tool"), "is_component": True}
    flows.flow("project.json", wrap([export("First Flow"), export("Zweiter Füller"), component]))
    snapshot = scan(flows.root)
    assert sorted(snapshot.routes) == ["first-flow", "zweiter-fuller"]
    assert snapshot.problems == ()
    assert snapshot.routes["first-flow"].flow_name == "First Flow"
    assert snapshot.routes["first-flow"].version != snapshot.routes["zweiter-fuller"].version


def test_a_change_of_one_flow_of_a_project_leaves_the_others_versions(flows: Folder) -> None:
    flows.flow("project.json", [export("a"), export("b")])
    before = scan(flows.root).routes
    flows.flow("project.json", [export("a", description="changed"), export("b")])
    after = scan(flows.root).routes
    assert before["a"].version != after["a"].version
    assert before["b"].version == after["b"].version


def test_a_bad_flow_of_a_project_does_not_harm_the_others(flows: Folder) -> None:
    flows.flow("project.json", [export("a"), {"name": "b"}, export(""), export("a2"), export("A2"), 5])
    snapshot = scan(flows.root)
    assert sorted(snapshot.routes) == ["a"]
    messages = " | ".join(problem.message for problem in snapshot.problems)
    assert "flows/project.json: flow 2 (b) is not a Langflow export" in messages
    assert "a route's name needs a letter or a digit; rename the flow" in messages
    assert "two flows of flows/project.json give routes of one name, 'a2'" in messages


def test_the_spec_of_a_project_names_its_flows(flows: Folder) -> None:
    flows.flow("project.json", {"flows": [export("First"), export("Second")]})
    flows.write("project.yaml", "flows:\n  First:\n    stream: one\n  second:\n")
    snapshot = scan(flows.root)
    assert {name: route.stream for name, route in snapshot.routes.items()} == {"first": "one", "second": "flows:second"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("stream: x", "line 1: the flow file holds several flows; write `flows:`"),
        ("flows:\n  secnd: {}", "line 2: there is no flow 'secnd' in the file; did you mean second?"),
        ("flows:\n  zzz: {}", "there is no flow 'zzz' in the file; there are first, second"),
        ("flows:\n  first: 5", "line 2: flows.first has to be a mapping"),
        ("flows: [a]", "line 1: flows has to map each route's name to its spec"),
        ("flows:\n  first:\n    strem: x", "line 3: unknown key strem; did you mean stream?"),
    ],
)
def test_mistakes_in_the_spec_of_a_project(flows: Folder, spec: str, message: str) -> None:
    flows.flow("project.json", {"flows": [export("First"), export("Second")]})
    flows.write("project.yaml", spec)
    problem = only_problem(scan(flows.root))
    assert message in problem.message
    assert problem.path == flows.root / "project.yaml"


def zipped(**members: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content if isinstance(content, str) else json.dumps(content))
    return buffer.getvalue()


def test_a_zipped_project(flows: Folder) -> None:
    flows.write(
        "project.zip",
        zipped(**{"p__First.json": export("First Flow"), "x.json": export(""), ".DS__s.json": "x", "readme.txt": "x"}),
    )
    snapshot = scan(flows.root)
    assert sorted(snapshot.routes) == ["first-flow", "x"]
    assert snapshot.problems == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04broken", "is not a zip that can be read"),
        (zipped(**{"a.txt": "x"}), "is a zip without flows"),
        (zipped(**{"a.json": "{"}), "a.json is not JSON"),
    ],
)
def test_zips_that_are_none(flows: Folder, content: bytes, message: str) -> None:
    flows.write("p.zip", content)
    assert message in only_problem(scan(flows.root)).message


def test_a_zip_bomb_is_not_unpacked(flows: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MAX_FILE", 100_000)
    flows.write("p.zip", zipped(**{"a.json": " " * 1_000_000}))
    assert "holds more than" in only_problem(scan(flows.root)).message


def test_a_route_that_would_read_its_own_outcomes_is_refused(flows: Folder) -> None:
    flows.flow("a.json")
    for spec in ("results: {stream: 'flows:a'}", "dead_letter: flows:a"):
        flows.write("a.yaml", spec)
        assert "that the route itself reads" in only_problem(scan(flows.root)).message


def test_a_stem_without_letters(flows: Folder) -> None:
    flows.flow("---.json")
    assert "rename the file" in only_problem(scan(flows.root)).message


def test_one_flow_file_by_itself(flows: Folder) -> None:
    path = flows.flow("a.json")
    flows.flow("b.json")
    flows.write("a.yaml", "stream: x")
    snapshot = scan(path)
    assert {name: route.stream for name, route in snapshot.routes.items()} == {"a": "x"}


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    problem = only_problem(scan(tmp_path / "none"))
    assert (problem.code, problem.route) == ("unreadable", None)
    assert "none cannot be read: no such file or directory" in problem.message


def test_what_is_no_file_is_told_of_and_never_opened(flows: Folder) -> None:
    """A pipe that nobody writes to would be read for ever, a device without end."""
    flows.flow("good.json")
    os.mkfifo(flows.root / "pipe.json")
    (flows.root / "zero.json").symlink_to("/dev/zero")
    snapshot = scan(flows.root)
    assert set(snapshot.routes) == {"good"}
    assert [p.path.name for p in snapshot.problems if "no regular file" in p.message] == ["pipe.json", "zero.json"]


def test_a_flow_whose_spec_cannot_be_seen_is_not_run_as_if_it_had_none(flows: Folder) -> None:
    flows.flow("good.json")
    (flows.root / "good.yaml").symlink_to("gone.yaml")
    snapshot = scan(flows.root)
    assert not snapshot.routes
    assert only_problem(snapshot).path.name == "good.yaml"


def test_a_link_that_leads_nowhere(flows: Folder) -> None:
    (flows.root / "a.json").symlink_to("gone.json")
    assert only_problem(scan(flows.root)).code == "unreadable"


def test_a_file_that_may_not_be_read(flows: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    flows.flow("a.json")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert "flows/a.json cannot be read: Permission denied" in only_problem(scan(flows.root)).message


def test_a_snapshot_cannot_be_changed(flows: Folder) -> None:
    flows.flow("a.json")
    snapshot = scan(flows.root)
    with pytest.raises(TypeError):
        snapshot.routes["b"] = snapshot.routes["a"]
    with pytest.raises(AttributeError):
        snapshot.routes["a"].name = "b"


def test_source_that_the_download_endpoint_wrote_as_lines_is_one_string(flows: Folder) -> None:
    def component(value: Any, **more: Any) -> dict[str, Any]:
        return {"id": "C-1", "data": {"node": {"template": {"code": {"type": "code", "value": value}}, **more}}}

    inner = component(["import json", "", "x = 1", ""])
    group = {"id": "G-1", "data": {"node": {"template": {}, "flow": {"data": {"nodes": [inner], "edges": []}}}}}
    flow = export("a")
    flow["data"]["nodes"] = [component(["a", "b"]), component("a\nb"), component(["a", 1]), group]
    flows.flow("a.json", flow)
    nodes = scan(flows.root).routes["a"].export["data"]["nodes"]
    codes = [n["data"]["node"]["template"]["code"]["value"] for n in nodes[:3]]
    assert codes == ["a\nb", "a\nb", ["a", 1]]
    grouped = nodes[3]["data"]["node"]["flow"]["data"]["nodes"][0]
    assert grouped["data"]["node"]["template"]["code"]["value"] == "import json\n\nx = 1\n"
