"""What is printed."""

from __future__ import annotations

import json

import pytest

from runtime.cli import output


def test_a_table_in_a_pipe_is_aligned_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(["a", "name"], [[1, "x"], [None, "longer"]], empty="none")
    assert capsys.readouterr().out == "A  NAME\n1  x\n   longer\n"


def test_an_empty_table_is_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(["a"], [], empty="no runs")
    assert capsys.readouterr() == ("", "no runs\n")


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert output.printable("a\x1b[2Jb\nc\td") == "a\ufffd[2Jb c d"


def test_an_array_item_by_item(capsys: pytest.CaptureFixture[str]) -> None:
    with output.json_array() as add:
        add({"a": "ü"})
        add(2)
    assert json.loads(capsys.readouterr().out) == [{"a": "ü"}, 2]
    with output.json_array():
        pass
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (-1, "0s"), (0.4, "0s"), (119, "119s"), (120, "2m"), (7300, "2h"), (200000, "2d")]
)
def test_ages(seconds: float | None, text: str) -> None:
    assert output.age(seconds) == text
