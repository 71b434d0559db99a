"""What the supervisor asks of a zygote that does not listen."""

from __future__ import annotations

import socket

import pytest

from runtime.worker.zygote import ChildSpec
from runtime.worker.zygote_link import ZygoteLink


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def fork(ours: socket.socket) -> tuple[ZygoteLink, bool]:
    link = ZygoteLink(ours, 0, forked=lambda name, pid: None, exited=lambda pid, status: None)
    mine, childs = socket.socketpair()
    with mine, childs:
        return link, link.fork(ChildSpec(name="w", slot=0), childs)


def test_what_it_has_no_room_for_is_told_and_it_is_not_gone(pair):
    ours, _ = pair
    assert fork(ours)[1]
    with pytest.raises(BlockingIOError):
        while True:
            ours.send(b"{}")
    link, asked = fork(ours)
    assert (asked, link.gone.is_set()) == (False, False)


def test_one_that_has_ended_hears_nothing(pair):
    ours, theirs = pair
    theirs.close()
    link, asked = fork(ours)
    assert (asked, link.gone.is_set()) == (False, True)
