"""What the user gives becomes the payload, as a worker would read it."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from runtime.cli import payloads


def test_a_text_is_the_input() -> None:
    assert payloads.single(None, "hi", None, None) == {"input_value": "hi"}


def test_an_empty_text_is_a_text() -> None:
    assert payloads.single(None, "", None, None) == {"input_value": ""}


def test_a_payload_is_a_json_object() -> None:
    assert payloads.single(None, None, '{"a": [1, null]}', None) == {"a": [1, None]}


@pytest.mark.parametrize(
    ("text", "said"),
    [("[1]", "an array"), ('"x"', "a string"), ("3", "a number"), ("true", "true or false"), ("null", "null")],
)
def test_other_json_is_no_payload(text: str, said: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"must be a JSON object, not {said}"):
        payloads.single(None, None, text, None)


@pytest.mark.parametrize("text", ["{", '{"a": NaN}', '{"a": Infinity}', "", "hello"])
def test_what_is_not_strict_json_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="--payload is not JSON"):
        payloads.single(None, None, text, None)


@pytest.mark.parametrize(
    "given", [(None, None, None, None), (None, "a", "{}", None), ("-", "a", None, None), ("-", None, None, "f")]
)
def test_exactly_one_source(given: tuple[str | None, str | None, str | None, str | None]) -> None:
    with pytest.raises(typer.BadParameter, match="one of --input TEXT"):
        payloads.single(*given)


def test_another_positional_argument_is_told_how_to_be_an_input() -> None:
    with pytest.raises(typer.BadParameter, match="a text is given with --input 'hello'"):
        payloads.single("hello", None, None, None)


def test_a_file_with_an_object_is_the_payload(tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_bytes(b'\xef\xbb\xbf{"x": 1}\n')
    assert payloads.single(None, None, None, str(path)) == {"x": 1}


def test_a_file_with_text_is_the_input(tmp_path: Path) -> None:
    path = tmp_path / "event.txt"
    path.write_text("one\ntwo\n")
    assert payloads.single(None, None, None, str(path)) == {"input_value": "one\ntwo"}


def test_a_broken_object_in_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_text('{"x": ')
    with pytest.raises(typer.BadParameter, match=r"event\.json is not JSON"):
        payloads.single(None, None, None, str(path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match=r"cannot read .*No such file"):
        payloads.single(None, None, None, str(tmp_path / "none"))


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(typer.BadParameter, match="is not UTF-8 text"):
        payloads.single(None, None, None, str(path))


def test_lines_are_one_event_each(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"a": 1}\n\nplain text\r\n{"a": 2}')
    assert list(payloads.lines(str(path))) == [{"a": 1}, {"input_value": "plain text"}, {"a": 2}]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(typer.BadParameter, match="line 2, is not JSON"):
        list(payloads.lines(str(path)))
