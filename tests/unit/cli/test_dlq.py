"""An edited dead letter is the same event with another payload."""

from __future__ import annotations

import pytest
import typer

from runtime.cli.dlq import Choice, edited
from shared_models.codec import decode
from shared_models.dead_letter import DeadLetter, ErrorInfo

LETTER = DeadLetter(
    id="9-0",
    route="hello",
    stream="flows:hello",
    entry_id="5-0",
    event_id="e-1",
    root_id="r-1",
    code="event_invalid",
    reason="bad",
    error=ErrorInfo(code="event_invalid", message="bad"),
)


def mended(*fields: tuple[bytes, bytes]):
    new = edited(fields, LETTER, {"input_value": "new"})
    return decode(new, stream="flows:hello", entry_id="6-0", max_payload=1000, now_ms=10)


def test_what_could_be_read_is_kept() -> None:
    envelope = mended(
        (b"event_id", b"e-1"),
        (b"root_id", b"r-9"),
        (b"session_id", b"s"),
        (b"payload", b'{"a": 1}'),
        (b"expires_at", b"5"),
    )
    assert (envelope.event_id, envelope.root_id, envelope.session_id) == ("e-1", "r-9", "s")
    assert envelope.payload == {"input_value": "new"}
    assert envelope.expires_at is None


def test_bare_fields_become_a_payload() -> None:
    envelope = mended((b"input_value", b"old"))
    assert envelope.payload == {"input_value": "new"}


@pytest.mark.parametrize("fields", [[(b"payload", b"{")], [(b"payload", b"\xff")], [(b"schema", b"99")], []])
def test_what_could_not_be_read_keeps_its_ids(fields: list[tuple[bytes, bytes]]) -> None:
    envelope = mended(*fields)
    assert (envelope.event_id, envelope.root_id) == ("e-1", "r-1")
    assert envelope.payload == {"input_value": "new"}


def test_nothing_is_meant_by_default() -> None:
    with pytest.raises(typer.BadParameter, match="say which"):
        Choice.of([], "hello", None, all_=False)


@pytest.mark.parametrize(
    ("choice", "means"),
    [
        (Choice.of(["9-0"], None, None, all_=False), True),
        (Choice.of(["8-0"], None, None, all_=False), False),
        (Choice.of(None, "hello", None, all_=True), True),
        (Choice.of(None, "other", None, all_=True), False),
        (Choice.of(None, None, "event_invalid", all_=False), True),
        (Choice.of(None, None, "other", all_=False), False),
    ],
)
def test_a_choice(choice: Choice, means: bool) -> None:
    assert choice.means(LETTER) is means
