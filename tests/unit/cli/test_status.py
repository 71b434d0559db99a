"""What a table of routes shows of what is not known."""

from __future__ import annotations

from runtime.cli.status import TOTALS, _shown, _total


def test_what_is_not_known_is_neither_nothing_nor_added_up() -> None:
    assert (_total([1, 2]), _total([1, None]), _total([])) == (3, None, 0)
    assert _shown({**dict.fromkeys(TOTALS, 0), "waiting": None}) == [0, "?", 0, 0, 0]
