"""Replies look as redis-cli prints them."""

from __future__ import annotations

import pytest

from runtime.broker.console import ErrorReply, Reply
from runtime.cli.redis import drawn, plain, raw


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (b"OK", '"OK"'),
        (3, "(integer) 3"),
        (None, "(nil)"),
        ([], "(empty array)"),
        (b'a"b\\\n\x00\xc3\xa9', '"a\\"b\\\\\\n\\x00\\xc3\\xa9"'),
        (ErrorReply("ERR no"), "(error) ERR no"),
        ([b"a", [1, None]], '1) "a"\n2) 1) (integer) 1\n   2) (nil)'),
        ([b"x"] * 10, "\n".join(f'{n:>2}) "x"' for n in range(1, 11))),
    ],
)
def test_drawn_for_people(reply: Reply, text: str) -> None:
    assert drawn(reply) == text


def test_raw_for_pipes() -> None:
    assert raw([b"a\xff", [1, None, ErrorReply("ERR x")]]) == b"a\xff\n1\n\nERR x"


def test_plain_for_json() -> None:
    assert plain([b"a\xff", 1, None, ErrorReply("ERR x")]) == ["a\\xff", 1, None, {"error": "ERR x"}]
