"""Files: those stored in a flow and those an event brings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runtime.errors import EventFault, FlowUnready
from tests.integration.engine.conftest import Runner
from tests.support import flows
from tests.support.flows import Field


def reads(stored: list[str] | None = None, *, name: str = "Reads a file") -> flows.Flow:
    flow = flows.Flow(name)
    file = flow.add("File", "File-it", path=Field(value=stored or "", file_path=stored or []))
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(file, "message", out, "input_value")
    return flow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "reader.files").mkdir()
    return tmp_path


async def test_a_stored_path_means_the_file_of_that_name_beside_the_flow(run: Runner, folder: Path) -> None:
    kept = folder / "reader.files" / "notes.txt"
    kept.write_text("what the notes say")
    for stored in ("0ae1c8b5-flow/notes.txt", "/home/somebody/.cache/langflow/x/notes.txt", "C:\\docs\\notes.txt"):
        source = flows.source(reads([stored], name=stored), path=folder / "reader.json")
        assert "what the notes say" in await run.text(source, payload={})
    assert kept.exists(), "the engine deletes what it has read; the flow's own files must stay"


async def test_a_stored_file_that_is_missing_makes_the_flow_unready(run: Runner, folder: Path) -> None:
    source = flows.source(reads(["f/notes.txt"], name="missing"), path=folder / "reader.json")
    with pytest.raises(FlowUnready, match=r"notes\.txt.*File-it"):
        await run.load(source)


async def test_a21_a_file_delivered_by_the_event_is_read(run: Runner, folder: Path, files_root: Path) -> None:
    source = flows.source(reads(name="by event"), path=folder / "reader.json")
    given = files_root / "given.txt"
    given.write_text("given by the event")
    for files in ([str(given)], {"File-it": str(given)}, {"Read File": [str(given)]}, str(given)):
        assert "given by the event" in await run.text(source, payload={"files": files})
    assert given.exists()


async def test_files_that_came_with_the_event_are_readable_by_its_run_only(
    run: Runner, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mine, theirs = tmp_path_factory.mktemp("mine"), tmp_path_factory.mktemp("theirs")
    for root in (mine, theirs):
        (root / "sent.txt").write_text(f"sent to {root.name}")
    source = flows.source(reads(name="sent"), path=folder / "reader.json")
    text = await run.text(source, payload={"files": [str(mine / "sent.txt")]}, files_root=mine)
    assert f"sent to {mine.name}" in text
    for root in (mine, None):
        with pytest.raises(EventFault) as caught:
            await run(source, payload={"files": [str(theirs / "sent.txt")]}, files_root=root)
        assert caught.value.info.code == "file_refused"


async def test_a21_a_name_in_the_flows_own_files_is_read(run: Runner, folder: Path) -> None:
    source = flows.source(reads(name="by name"), path=folder / "reader.json")
    (folder / "reader.files" / "own.txt").write_text("the flow's own")
    assert "the flow's own" in await run.text(source, payload={"files": ["own.txt"]})


async def test_a21_an_event_without_the_file_is_at_fault_and_names_the_component(run: Runner, folder: Path) -> None:
    source = flows.source(reads(name="none"), path=folder / "reader.json")
    with pytest.raises(EventFault, match="File-it") as caught:
        await run(source, payload={})
    assert caught.value.info.code == "file_missing"


async def test_a21_a_missing_file_is_named_with_its_component(run: Runner, folder: Path, files_root: Path) -> None:
    source = flows.source(reads(name="gone"), path=folder / "reader.json")
    with pytest.raises(EventFault, match=r"gone\.txt.*File-it") as caught:
        await run(source, payload={"files": [str(files_root / "gone.txt")]})
    assert (caught.value.info.code, caught.value.info.component_id) == ("file_missing", "File-it")


@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd", "{root}/../outside.txt", "{root}/link"])
async def test_a21_a_file_outside_the_allowed_directories_is_refused(
    run: Runner, folder: Path, files_root: Path, path: str
) -> None:
    (files_root.parent / "outside.txt").write_text("secret")
    link = files_root / "link"
    if not link.is_symlink():
        link.symlink_to("/etc/passwd")
    source = flows.source(reads(name="outside"), path=folder / "reader.json")
    with pytest.raises(EventFault, match="File-it") as caught:
        await run(source, payload={"files": [path.format(root=files_root)]})
    assert caught.value.info.code == "file_refused"


async def test_a_tweak_cannot_name_a_file_outside_either(run: Runner, folder: Path) -> None:
    source = flows.source(reads(name="tweak out"), path=folder / "reader.json")
    with pytest.raises(EventFault) as caught:
        await run(source, payload={"tweaks": {"File-it": {"path": ["/etc/passwd"]}}}, tweaks_allowed=True)
    assert caught.value.info.code == "file_refused"


async def test_an_unknown_component_is_named_with_the_nearest(run: Runner, folder: Path, files_root: Path) -> None:
    source = flows.source(reads(name="unknown"), path=folder / "reader.json")
    (files_root / "x.txt").write_text("x")
    with pytest.raises(EventFault, match="did you mean 'File-it'"):
        await run(source, payload={"files": {"File-itt": str(files_root / "x.txt")}})


async def test_files_for_a_flow_that_reads_none_are_the_events_fault(run: Runner, files_root: Path) -> None:
    (files_root / "x.txt").write_text("x")
    body = "def work(self) -> Message:\n    return Message(text='x')"
    flow = flows.Flow("No files")
    made = flow.custom(flows.component(body), "Custom-it")
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(made, "out", out, "input_value")
    with pytest.raises(EventFault) as caught:
        await run(flow, payload={"files": [str(files_root / "x.txt")]})
    assert caught.value.info.code == "file_refused"


async def test_two_flows_do_not_read_each_others_files(run: Runner, folder: Path) -> None:
    (folder / "other.files").mkdir()
    (folder / "other.files" / "theirs.txt").write_text("not for you")
    body = """
        def work(self) -> Message:
            from lfx.utils.file_path_security import enforce_current_file_access
            return Message(text=enforce_current_file_access(self.text).read_text())
    """
    source = flows.source(flows.through(body), path=folder / "reader.json")
    shutil.copy(folder / "other.files" / "theirs.txt", folder / "reader.files" / "mine.txt")
    assert await run.text(source, str(folder / "reader.files" / "mine.txt")) == "not for you"
    with pytest.raises(Exception, match="Custom-it"):
        await run(source, str(folder / "other.files" / "theirs.txt"))
