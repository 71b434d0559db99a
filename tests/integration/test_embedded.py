"""The embedded Valkey: one per folder, adopted by the next, gone with its starter, its data kept."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis

from runtime.broker import embedded
from runtime.broker.embedded import EmbeddedValkey, find_redis_url, find_server
from runtime.errors import BrokerUnavailable

STARTER = """
import sys, time
from pathlib import Path
from runtime.broker.embedded import EmbeddedValkey
server = EmbeddedValkey.start(Path(sys.argv[1]))
print(server.owned, server.url, flush=True)
sys.stdin.read()
server.stop()
"""


def until(holds: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True, socket_timeout=10.0)


def servers_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["name"]):
        if "valkey" in (process.info["name"] or "") and any(
            Path(f.path).is_relative_to(folder) for f in _files(process)
        ):
            found.append(process)
    return found


def _files(process: psutil.Process) -> list:
    try:
        return process.open_files()
    except psutil.Error:
        return []


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "a folder" / ".headrace"


@pytest.fixture
def start(data: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starters in processes of their own."""
    started: list[subprocess.Popen[str]] = []

    def one() -> subprocess.Popen[str]:
        starter = subprocess.Popen(
            [sys.executable, "-c", STARTER, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(starter)
        return starter

    yield one
    for starter in started:
        starter.kill()
        starter.communicate()
    until(lambda: not servers_of(data))


def told(starter: subprocess.Popen[str]) -> tuple[bool, str]:
    assert starter.stdout is not None
    owned, url = starter.stdout.readline().split()
    return owned == "True", url


def test_start_use_stop_and_start_again(data: Path) -> None:
    server = EmbeddedValkey.start(data)
    try:
        assert server.owned
        assert server.alive()
        with client(server.url) as c:
            c.xadd("s", {"a": "b"})
            assert c.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert c.config_get("appendonly", "appendfsync") == {"appendonly": "yes", "appendfsync": "everysec"}
            assert c.config_get("bind") == {"bind": "127.0.0.1"}
        assert find_redis_url(data.parent) == server.url
        assert find_redis_url(data.parent / "deep" / "down") == server.url
    finally:
        server.stop()
    assert not server.alive()
    assert find_redis_url(data.parent) is None
    server.stop()
    again = EmbeddedValkey.start(data)
    try:
        with client(again.url) as c:
            assert c.xlen("s") == 1
    finally:
        again.stop()


def test_nobody_else_can_connect_or_read(data: Path) -> None:
    server = EmbeddedValkey.start(data)
    try:
        with (
            pytest.raises(redis.AuthenticationError),
            client(server.url.split("@")[0].split(":")[0] + "://" + server.url.split("@")[1]) as c,
        ):
            c.ping()
        password = server.url.split("@")[0].rpartition(":")[2]
        assert len(password) >= 24
        for process in servers_of(data):
            assert password not in " ".join(process.cmdline())
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        for name in ("redis.url", "redis.lock", "redis.log"):
            assert stat.S_IMODE((data / name).stat().st_mode) == 0o600, name
    finally:
        server.stop()


def test_a_running_one_is_adopted_and_not_ended_by_the_adopter(
    data: Path, start: Callable[[], subprocess.Popen[str]]
) -> None:
    first = start()
    owned, url = told(first)
    assert owned
    adopted = EmbeddedValkey.start(data)
    assert (adopted.owned, adopted.url, adopted.alive()) == (False, url, True)
    adopted.stop()
    with client(url) as c:
        assert c.ping()
    first.communicate("", timeout=20)
    assert not adopted.alive()


def test_kill_9_of_the_starter_ends_the_server_and_the_next_has_the_data(
    data: Path, start: Callable[[], subprocess.Popen[str]]
) -> None:
    for n in range(4):
        starter = start()
        owned, url = told(starter)
        assert owned
        with client(url) as c:
            assert c.xlen("s") == n
            c.xadd("s", {"n": n})
        starter.kill()
        starter.wait()
        # Not waited for: the next one must not adopt what is about to end, nor start beside it.
    until(lambda: not servers_of(data))


def test_kill_9_of_the_server_is_noticed_and_loses_nothing(data: Path) -> None:
    server = EmbeddedValkey.start(data)
    try:
        with client(server.url) as c:
            for n in range(100):
                c.xadd("s", {"n": n})
        (process,) = servers_of(data)
        process.send_signal(signal.SIGKILL)
        until(lambda: not server.alive())
    finally:
        server.stop()
    again = EmbeddedValkey.start(data)
    try:
        with client(again.url) as c:
            assert c.xlen("s") == 100
    finally:
        again.stop()


def test_two_that_start_at_once_have_one_server(data: Path, start: Callable[[], subprocess.Popen[str]]) -> None:
    starters = [start() for _ in range(4)]
    answers = [told(starter) for starter in starters]
    assert sorted(owned for owned, _ in answers) == [False, False, False, True]
    assert len({url for _, url in answers}) == 1
    assert len(servers_of(data)) == 1


def test_a_folder_whose_server_does_not_answer_is_refused_clearly(
    data: Path, start: Callable[[], subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_TIMEOUT", 0.3)
    starter = start()
    told(starter)
    (data / "redis.url").unlink()
    with pytest.raises(BrokerUnavailable, match="in use by another"):
        EmbeddedValkey.start(data)


def test_a_server_that_cannot_start_says_why(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data.mkdir(parents=True)
    (data / "appendonlydir").write_text("not a folder")
    with pytest.raises(BrokerUnavailable, match=r"did not start: .*append"):
        EmbeddedValkey.start(data)


def test_a_taken_port_is_tried_again(data: Path, monkeypatch: pytest.MonkeyPatch, valkey_server) -> None:
    ports = iter([valkey_server.port, valkey_server.port])
    real = embedded._free_port
    monkeypatch.setattr(embedded, "_free_port", lambda: next(ports, None) or real())
    server = EmbeddedValkey.start(data)
    try:
        assert server.alive()
    finally:
        server.stop()


def test_without_the_wheel_a_server_on_path_is_used(data: Path, monkeypatch: pytest.MonkeyPatch, redis_server) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda _: None)
    server = EmbeddedValkey.start(data)
    try:
        assert server.alive()
    finally:
        server.stop()
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(BrokerUnavailable, match=r"headrace\[embedded\]"):
        find_server()


def test_the_signal_of_a_terminal_reaches_only_its_starter(data: Path) -> None:
    server = EmbeddedValkey.start(data)
    try:
        (process,) = servers_of(data)
        assert os.getpgid(process.pid) != os.getpgid(0)
    finally:
        server.stop()
