"""What is kept of a run that waits: encrypted where there is a key, and only opened for the run that it is of."""

from __future__ import annotations

import pytest

from runtime.errors import CheckpointLocked, EventFault, Fault
from runtime.worker.sealing import Seal

STATE = b'{"secret": "hunter22"}' * 50


@pytest.mark.parametrize("keys", [None, "", "one", "two,one"])
def test_what_is_sealed_opens(keys: str | None) -> None:
    assert Seal(keys).open(Seal(keys).seal(STATE, run="e1"), run="e1") == STATE


def test_it_is_small_and_says_nothing() -> None:
    kept = Seal("one").seal(STATE, run="e1")
    assert len(kept) < len(STATE) / 5
    assert Seal("one").seal(STATE, run="e1") != kept, "a nonce was used twice"
    assert b"hunter22" not in kept


def test_a_key_is_changed_by_putting_a_new_one_before_it() -> None:
    old, new = Seal("one"), Seal(" two , one ")
    assert new.open(old.seal(STATE, run="e1"), run="e1") == STATE
    assert Seal("two").open(new.seal(STATE, run="e1"), run="e1") == STATE


def code(keys: str | None, kept: bytes, run: str = "e1") -> tuple[type[Fault], str]:
    with pytest.raises(Fault) as caught:
        Seal(keys).open(kept, run=run)
    return type(caught.value), caught.value.info.code


def test_a_missing_key_is_told_from_damage() -> None:
    kept = Seal("one").seal(STATE, run="e1")
    assert code("two", kept) == code(None, kept) == (CheckpointLocked, "checkpoint_key")


def test_what_is_not_this_runs_own_is_refused() -> None:
    kept = Seal("one").seal(STATE, run="e1")
    unreadable = (EventFault, "checkpoint_unreadable")
    assert code("one", kept, run="e2") == unreadable
    for place in (20, len(kept) - 1):
        changed = bytearray(kept)
        changed[place] ^= 1
        assert code("one", bytes(changed)) == unreadable
    assert code("one", kept[:30]) == unreadable
    for nonsense in (b"", b"x", b"pnot compressed"):
        assert code(None, nonsense) == unreadable


def test_with_a_key_nothing_unencrypted_is_taken() -> None:
    assert code("one", Seal(None).seal(STATE, run="e1")) == (EventFault, "checkpoint_unreadable")
