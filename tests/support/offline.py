"""A process without a network: every connection and look-up that leaves the machine is refused and remembered."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any
from unittest import mock

CONTAINER_HOSTS = frozenset({"host.docker.internal", "host.containers.internal"})
"""Names that the engine looks up to find out how a container reaches its host: no outside party hears of that."""


class Offline:
    """What was reached for, host by host, since the last ``taken``."""

    def __init__(self) -> None:
        self._attempts: list[str] = []

    def taken(self) -> frozenset[str]:
        """The hosts since the last call, without the names of a container's host."""
        attempts, self._attempts = frozenset(self._attempts), []
        return attempts - CONTAINER_HOSTS

    @contextlib.contextmanager
    def guard(self) -> Iterator[Offline]:
        """Refuse while inside. Works for code that imported ``socket`` before."""
        connect, connect_ex = socket.socket.connect, socket.socket.connect_ex
        getaddrinfo, gethostbyname = socket.getaddrinfo, socket.gethostbyname

        def guarded_connect(sock: socket.socket, address: Any) -> None:
            self._check(address)
            connect(sock, address)

        def guarded_connect_ex(sock: socket.socket, address: Any) -> int:
            self._check(address)
            return connect_ex(sock, address)

        def guarded_getaddrinfo(host: Any, *args: Any, **more: Any) -> Any:
            self._check_name(host)
            return getaddrinfo(host, *args, **more)

        def guarded_gethostbyname(host: Any) -> str:
            self._check_name(host)
            return gethostbyname(host)

        with (
            mock.patch.object(socket.socket, "connect", guarded_connect),
            mock.patch.object(socket.socket, "connect_ex", guarded_connect_ex),
            mock.patch.object(socket, "getaddrinfo", guarded_getaddrinfo),
            mock.patch.object(socket, "gethostbyname", guarded_gethostbyname),
        ):
            yield self

    def _check(self, address: Any) -> None:
        if isinstance(address, tuple) and not _local(str(address[0])):
            self._attempts.append(str(address[0]))
            raise ConnectionRefusedError(f"no network in this test: {address[0]}")

    def _check_name(self, host: Any) -> None:
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host or "")
        if not _local(name):
            self._attempts.append(name)
            raise socket.gaierror(socket.EAI_NONAME, f"no network in this test: {name}")


def _local(host: str) -> bool:
    return host in ("", "localhost", "::1", "0.0.0.0") or host.startswith("127.")
