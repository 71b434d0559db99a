"""Output that nobody takes is lost and counted; it never holds up whoever writes it."""

from __future__ import annotations

import fcntl
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.telemetry.outlet import Outlet

LINE = b"x" * 1000 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reading and the writing end of a pipe that holds 4 KiB."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    yield reading, writing
    for end in (reading, writing):
        try:
            os.close(end)
        except OSError:
            continue


def quick(descriptor: int) -> Outlet:
    return Outlet(descriptor, patience=0.01, share=0.0)


def test_a_pipe_that_nobody_reads_takes_what_it_holds_and_the_rest_is_counted(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    out = quick(writing)
    for _ in range(10):
        assert out.write(LINE) == len(LINE)
    assert (out.lost, out.flows) == (6, False)
    assert os.get_blocking(writing), "the description that strangers share is as it was"
    kept = os.read(reading, 65536)
    out.write(b"later\n")
    assert out.flows
    # The one that was half written when the pipe was full was finished first.
    assert (kept + os.read(reading, 65536)).splitlines(keepends=True) == [LINE] * 4 + [b"later\n"]


def test_a_socket_that_nobody_reads_holds_up_nobody() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        out = quick(ours.fileno())
        for _ in range(50):
            out.write(LINE)
        assert out.lost > 0
        assert theirs.recv(1 << 20).startswith(LINE)


def test_one_who_has_hung_up_is_no_error_of_whoever_writes(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    out = quick(writing)
    out.write(LINE)
    assert out.lost == 1


def test_a_file_and_what_takes_its_descriptor_get_only_what_is_theirs(pipe: tuple[int, int], tmp_path: Path) -> None:
    reading, writing = pipe
    out = quick(writing)
    out.write(b"before\n")
    assert out._own is not None
    with (tmp_path / "other").open("wb") as other:
        os.dup2(other.fileno(), out._own)  # a component has closed it, and opened something
        out.write(b"after\n")
    assert os.read(reading, 100) == b"before\nafter\n"
    assert (tmp_path / "other").read_bytes() == b""
    with (tmp_path / "log").open("wb") as log:
        Outlet(log.fileno()).write(b"line\n")
    assert (tmp_path / "log").read_bytes() == b"line\n"


def test_what_stands_in_for_a_while_is_not_kept_open(pipe: tuple[int, int]) -> None:
    """A component that captures what is printed reads until the end, which comes when nobody holds its pipe open."""
    reading, writing = pipe
    out = quick(writing)
    out.write(b"before\n")
    saved, before = os.dup(writing), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        captured, standing_in = os.pipe()
        os.dup2(standing_in, writing)
        os.close(standing_in)
        out.write(b"captured\n")
        os.dup2(saved, writing)
        with open(captured, "rb") as capture:
            assert select.select([capture], [], [], 5)[0]
            os.set_blocking(captured, False)
            assert capture.read() == b"captured\n"
            assert capture.read() == b"", "its end"
        out.write(b"after\n")
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(saved)
    assert os.read(reading, 100) == b"before\n" + b"after\n" * 3


def test_a_pipe_of_another_user_holds_up_nobody_either(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Made by root, say, for a worker that then gave up its rights: it cannot be opened anew."""

    def refused(*_: object, **__: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", refused)
    reading, writing = pipe
    out = quick(writing)
    for _ in range(10):
        out.write(LINE)
    assert not out.flows
    assert os.read(reading, 65536).startswith(LINE)
    out.write(b"later\n")
    assert out.flows
    assert os.read(reading, 65536) == b"later\n"
