"""Clusters, Sentinel sets and TLS servers on loopback, made from the servers' binaries alone."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from runtime.broker.cluster import SLOTS, _slot
from tests.support.servers import DEADLINE, RedisServer, free_port

NODE_TIMEOUT = 1500
"""Milliseconds until the others of a cluster take a server for dead."""

DOWN_AFTER = 1000
"""Milliseconds until a Sentinel takes the primary for down."""


class Cluster:
    """Three primaries with a replica each."""

    def __init__(self, binary: str, stack: ExitStack) -> None:
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT)]
        options += ["--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"]
        self.servers = [
            stack.enter_context(RedisServer(binary, config=[*options, "--cluster-port", str(free_port())]))
            for _ in range(6)
        ]
        self._join()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:3])

    def owner(self, key: str) -> RedisServer:
        """The primary that has a key now."""
        for server in self.servers:
            if server.running:
                for first, last, (_, port, *_), *_ in server.execute("CLUSTER", "SLOTS"):
                    if int(first) <= _slot(key) <= int(last):
                        return next(s for s in self.servers if s.port == int(port))
        raise AssertionError(f"nobody has {key}")

    def _join(self) -> None:
        primaries, replicas = self.servers[:3], self.servers[3:]
        for n, server in enumerate(self.servers):
            server.execute("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for n, server in enumerate(primaries):
            server.execute("CLUSTER", "ADDSLOTSRANGE", n * SLOTS // 3, (n + 1) * SLOTS // 3 - 1)
        first = self.servers[0]
        for server in self.servers[1:]:
            bus = server.option("--cluster-port")
            first.execute("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        until(lambda: all(len(nodes_of(server)) == 6 for server in self.servers), "the servers to know each other")
        for primary, replica in zip(primaries, replicas, strict=True):
            replica.execute("CLUSTER", "REPLICATE", primary.execute("CLUSTER", "MYID"))
        until(lambda: all(in_step(replica) for replica in replicas), "the replicas")
        until(lambda: all(sees_all(server) for server in self.servers), "the cluster")


def nodes_of(server: RedisServer) -> list[str]:
    return str(server.execute("CLUSTER", "NODES")).splitlines() if server.running else []


def in_step(replica: RedisServer) -> bool:
    info = replica.execute("INFO", "replication")
    return "master_link_status:up" in str(info) or (isinstance(info, dict) and info.get("master_link_status") == "up")


def sees_all(server: RedisServer) -> bool:
    info = server.execute("CLUSTER", "INFO")
    good = "cluster_state:ok" in str(info) or (isinstance(info, dict) and info.get("cluster_state") == "ok")
    return good and sum(" slave " in line or ",slave" in line for line in map(str, nodes_of(server))) >= 3


class SentinelServer(RedisServer):
    """A Sentinel that watches one primary under the name ``main``."""

    def __init__(self, binary: str, primary: RedisServer) -> None:
        super().__init__(binary)
        self._file = self.folder / "sentinel.conf"
        self._file.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\nlogfile {self.folder}/log\n"
            f"sentinel monitor main 127.0.0.1 {primary.port} 2\nsentinel down-after-milliseconds main {DOWN_AFTER}\n"
            "sentinel failover-timeout main 4000\n"
        )

    def _arguments(self) -> list[str]:
        return [str(self._file), "--sentinel"]


class SentinelSet:
    """A primary with two replicas, and three Sentinels."""

    def __init__(self, binary: str, stack: ExitStack) -> None:
        self.primary = stack.enter_context(RedisServer(binary))
        following = ["--replicaof", f"127.0.0.1 {self.primary.port}", "--repl-diskless-sync-delay", "0"]
        self.replicas = [stack.enter_context(RedisServer(binary, config=following)) for _ in range(2)]
        until(lambda: all(in_step(replica) for replica in self.replicas), "the replicas")
        self.sentinels = [stack.enter_context(SentinelServer(binary, self.primary)) for _ in range(3)]
        until(lambda: all(self._knows(sentinel) for sentinel in self.sentinels), "the Sentinels")

    @property
    def url(self) -> str:
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{s.port}" for s in self.sentinels) + "/main/0"

    def promoted(self) -> bool:
        """Whether a replica has taken over."""
        return any(replica.execute("ROLE")[0] == "master" for replica in self.replicas)

    def _knows(self, sentinel: RedisServer) -> bool:
        flat = sentinel.execute("SENTINEL", "MASTERS")[0]
        found = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        return (str(found.get("num-slaves")), str(found.get("num-other-sentinels"))) == ("2", "2")


@contextmanager
def cluster(binary: str) -> Iterator[Cluster]:
    """A cluster that answers, until the end of the block."""
    with ExitStack() as stack:
        yield Cluster(binary, stack)


@contextmanager
def sentinel_set(binary: str) -> Iterator[SentinelSet]:
    """A Sentinel set that answers, until the end of the block."""
    with ExitStack() as stack:
        yield SentinelSet(binary, stack)


@contextmanager
def tls_server(binary: str, folder: Path) -> Iterator[tuple[RedisServer, int]]:
    """A server with a certificate of an authority of our own (``ca.pem``), and its TLS port; clients need one too."""
    make_certificates(folder)
    port = free_port()
    options = [
        "--tls-port",
        str(port),
        "--tls-cert-file",
        f"{folder}/server.pem",
        "--tls-key-file",
        f"{folder}/key.pem",
    ]
    options += ["--tls-ca-cert-file", f"{folder}/ca.pem", "--tls-auth-clients", "yes"]
    with RedisServer(binary, config=options) as server:
        yield server, port


def make_certificates(folder: Path) -> None:
    """``ca.pem``, and ``server.pem`` for loopback with its key ``key.pem``."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=30)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority")
    openssl("req", *curve, "-keyout", "key.pem", "-out", "server.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl(
        *("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-out", "server.pem", "-extfile", "names"),
    )


def until(holds: Callable[[], Any], what: str, *, timeout: float = DEADLINE) -> None:
    """Wait until something holds that nobody tells of."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.02)


async def until_async(holds: Callable[[], Any], what: str, *, timeout: float = DEADLINE) -> None:
    """The same, while this loop goes on."""
    async with asyncio.timeout(timeout):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.02)
