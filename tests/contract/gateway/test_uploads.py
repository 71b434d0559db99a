"""Files and large payloads over HTTP: in the archive, with a reference in the entry."""

from __future__ import annotations

import json

import pytest

from runtime.archive.archive import name_of
from runtime.registry.snapshot import ingress_of
from shared_models.references import FileReference, Reference
from shared_models.route import RouteSpec
from tests.support.gateway import gateway_in_process, route_entry

PATH = "/v1/routes/a/events"


@pytest.fixture
async def gateway(broker_url, tmp_path):
    async with gateway_in_process(
        broker_url, route_entry("a"), archive=tmp_path / "archive", inline_limit=2000, max_upload=5_000_000, max_files=3
    ) as one:
        yield one


async def fields_of(gateway, event_id):
    entries = await gateway.gateway.broker.connection.command("XRANGE", "flows:a", "-", "+")
    all_fields = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in entries]
    (found,) = [fields for fields in all_fields if fields[b"event_id"].decode() == event_id]
    return {name.decode(): value.decode() for name, value in found.items()}


async def test_files_lie_in_the_archive_when_the_event_is_accepted(gateway, tmp_path):
    big = b"%PDF" + b"x" * 3_000_000
    answer = await gateway.http.post(
        PATH,
        data={"payload": json.dumps({"input_value": "read this"}), "note": "n"},
        files=[("files", ("../../report.pdf", big)), ("files", ("b.txt", b"two"))],
    )
    assert answer.status_code == 202, answer.text
    payload = json.loads((await fields_of(gateway, answer.json()["event_id"]))["payload"])
    references = [FileReference.parse(text, field="files") for text in payload.pop("files")]
    assert payload == {"input_value": "read this", "note": "n"}
    assert [r.name for r in references] == ["report.pdf", "b.txt"]
    for reference, content in zip(references, (big, b"two"), strict=True):
        assert (tmp_path / "archive" / name_of(None, reference.reference)).read_bytes() == content


async def test_files_for_named_components(gateway):
    answer = await gateway.http.post(
        PATH, files=[("File-a", ("x", b"1")), ("File-a", ("y", b"2")), ("CSV", ("z", b""))]
    )
    files = json.loads((await fields_of(gateway, answer.json()["event_id"]))["payload"])["files"]
    assert {name: [text.rpartition("/")[2] for text in texts] for name, texts in files.items()} == {
        "File-a": ["x", "y"],
        "CSV": ["z"],
    }


async def test_the_same_files_under_the_same_key_are_the_same_event(gateway):
    headers = {"Idempotency-Key": "k"}
    first = await gateway.http.post(PATH, files={"file": ("x", b"1")}, headers=headers)
    again = await gateway.http.post(PATH, files={"file": ("x", b"1")}, headers=headers)
    other = await gateway.http.post(PATH, files={"file": ("x", b"2")}, headers=headers)
    assert first.json()["event_id"] == again.json()["event_id"]
    assert (again.json()["duplicate"], other.status_code) == (True, 422)


@pytest.mark.parametrize(
    ("data", "files", "status"),
    [
        ({}, [("file", (f"{n}", b"x")) for n in range(4)], 413),
        ({}, [("file", ("big", b"x" * 5_000_001))], 413),
        ({"payload": "x" * 1_100_000}, [("file", ("x", b"x"))], 413),
        ({f"f{n}": "x" for n in range(60)}, [("file", ("x", b"x"))], 413),
        ({"payload": "[1]"}, [("file", ("x", b"x"))], 422),
        ({"payload": "{"}, [("file", ("x", b"x"))], 422),
        ({"payload": '{"files": ["/etc/passwd"]}'}, [("file", ("x", b"x"))], 422),
        ({"payload": '{"a": 1}', "a": "2"}, [("file", ("x", b"x"))], 422),
        ({}, [("file", ("x", b"x")), ("File-a", ("y", b"y"))], 422),
    ],
)
async def test_what_is_too_much_or_unclear_is_refused(gateway, data, files, status):
    answer = await gateway.http.post(PATH, data=data, files=files)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    assert not await gateway.gateway.broker.connection.command("EXISTS", "flows:a")


@pytest.mark.parametrize(
    "body", [b"", b"--b", b"--b\r\n\r\nx\r\n--b--", b"--b\r\nContent-Disposition: form-data\r\n\r\nx"]
)
async def test_what_is_no_form_is_refused(gateway, body):
    for boundary in ("; boundary=b", ""):
        headers = {"content-type": f"multipart/form-data{boundary}"}
        assert (await gateway.http.post(PATH, content=body, headers=headers)).status_code == 422


async def test_a_large_payload_lies_in_the_archive(gateway, tmp_path):
    text = json.dumps({"input_value": "é" * 1500}, ensure_ascii=False)
    answer = await gateway.http.post(PATH, content=text.encode(), headers={"content-type": "application/json"})
    fields = await fields_of(gateway, answer.json()["event_id"])
    assert "payload" not in fields
    reference = Reference.parse(fields["payload_ref"], field="payload_ref")
    assert (tmp_path / "archive" / name_of(None, reference)).read_text() == text
    small = await gateway.http.post(PATH, json={"input_value": "é"})
    assert "payload_ref" not in await fields_of(gateway, small.json()["event_id"])


async def test_without_an_archive_no_files_are_taken(broker_url):
    async with gateway_in_process(broker_url, route_entry("a"), inline_limit=2000) as one:
        answer = await one.http.post(PATH, files={"file": ("x", b"1")})
        assert (answer.status_code, answer.json()["code"]) == (415, "files_not_configured")
        large = await one.http.post(PATH, json={"input_value": "x" * 5000})
        assert "payload" in await fields_of(one, large.json()["event_id"])


async def test_an_archive_that_is_away_takes_nothing(gateway, monkeypatch, tmp_path):
    folder = tmp_path / "archive"
    folder.write_text("in the way")
    for sent in ({"json": {"input_value": "x" * 5000}}, {"files": {"file": ("x", b"1")}}):
        answer = await gateway.http.post(PATH, **sent)
        assert (answer.status_code, answer.json()["code"]) == (503, "archive_unavailable"), answer.text
        assert "retry-after" in answer.headers
    assert not await gateway.gateway.broker.connection.command("EXISTS", "flows:a")


async def test_a_file_that_is_too_much_now_is_never_taken(broker_url, tmp_path):
    spec = RouteSpec.model_validate({"limits": {"rate": "1/h"}})
    entry = route_entry("a", ingress=ingress_of(spec))
    async with gateway_in_process(broker_url, entry, archive=tmp_path / "archive") as one:
        taken = await one.http.post(PATH, files={"file": ("x", b"first")})
        assert taken.status_code == 202, taken.text
        before = sorted((tmp_path / "archive").rglob("*"))
        refused = await one.http.post(PATH, files={"file": ("x", b"second")})
        assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
        assert sorted((tmp_path / "archive").rglob("*")) == before
