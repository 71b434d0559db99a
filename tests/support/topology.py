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
    """Three primaries with a replica each; with certificates in ``tls`` they can be reached, and are linked, by TLS."""

    def __init__(self, binary: str, stack: ExitStack, tls: Path | None = None) -> None:
        self._tls = tls
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT)]
        options += ["--tls-cluster", "yes"] if tls else []
        options += ["--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"]
        self.servers = [
            stack.enter_context(
                RedisServer(binary, config=[*options, "--cluster-port", str(free_port()), *tls_options(tls)])
            )
            for _ in range(6)
        ]
        self._join()

    @property
    def url(self) -> str:
        if self._tls is None:
            return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:3])
        hosts = ",".join(f"127.0.0.1:{server.option('--tls-port')}" for server in self.servers[:3])
        return f"rediss+cluster://{hosts}?{tls_query(self._tls)}"

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

    def __init__(self, binary: str, primary: RedisServer, tls: Path | None = None) -> None:
        super().__init__(binary, config=tls_options(tls))
        self._file = self.folder / "sentinel.conf"
        options = self._config[4:]
        lines = [
            f"{name.removeprefix('--')} {value}\n" for name, value in zip(options[::2], options[1::2], strict=True)
        ]
        self._file.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\nlogfile {self.folder}/log\n{''.join(lines)}"
            f"sentinel monitor main 127.0.0.1 {linked(primary, tls)} 2\n"
            f"sentinel down-after-milliseconds main {DOWN_AFTER}\n"
            "sentinel failover-timeout main 4000\n"
        )

    def _arguments(self) -> list[str]:
        return [str(self._file), "--sentinel"]


class SentinelSet:
    """A primary with replicas, and Sentinels; as a cluster, with or without TLS."""

    def __init__(
        self, binary: str, stack: ExitStack, tls: Path | None = None, *, replicas: int = 2, sentinels: int = 3
    ) -> None:
        self._tls = tls
        self.primary = stack.enter_context(RedisServer(binary, config=tls_options(tls)))
        following = ["--replicaof", f"127.0.0.1 {linked(self.primary, tls)}", "--repl-diskless-sync-delay", "0"]
        self.replicas = [
            stack.enter_context(RedisServer(binary, config=[*following, *tls_options(tls)])) for _ in range(replicas)
        ]
        until(lambda: all(in_step(replica) for replica in self.replicas), "the replicas")
        self.sentinels = [stack.enter_context(SentinelServer(binary, self.primary, tls)) for _ in range(sentinels)]
        until(lambda: all(self._knows(sentinel) for sentinel in self.sentinels), "the Sentinels")

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{linked(s, self._tls)}" for s in self.sentinels)
        if self._tls is None:
            return f"redis+sentinel://{hosts}/main/0"
        return f"rediss+sentinel://{hosts}/main/0?{tls_query(self._tls)}"

    def promoted(self) -> bool:
        """Whether a replica has taken over."""
        return any(replica.execute("ROLE")[0] == "master" for replica in self.replicas)

    def _knows(self, sentinel: RedisServer) -> bool:
        flat = sentinel.execute("SENTINEL", "MASTERS")[0]
        found = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        others = str(len(self.replicas)), str(len(self.sentinels) - 1)
        return (str(found.get("num-slaves")), str(found.get("num-other-sentinels"))) == others


@contextmanager
def cluster(binary: str, tls: Path | None = None) -> Iterator[Cluster]:
    """A cluster that answers, until the end of the block."""
    with ExitStack() as stack:
        yield Cluster(binary, stack, tls)


@contextmanager
def sentinel_set(
    binary: str, tls: Path | None = None, *, replicas: int = 2, sentinels: int = 3
) -> Iterator[SentinelSet]:
    """A Sentinel set that answers, until the end of the block."""
    with ExitStack() as stack:
        yield SentinelSet(binary, stack, tls, replicas=replicas, sentinels=sentinels)


def tls_options(folder: Path | None) -> list[str]:
    """A TLS port with the certificates of a folder, which clients must have too; links between servers go there."""
    if folder is None:
        return []
    files = {"--tls-cert-file": "server.pem", "--tls-key-file": "key.pem", "--tls-ca-cert-file": "ca.pem"}
    named = [word for name, file in files.items() for word in (name, str(folder / file))]
    return ["--tls-port", str(free_port()), *named, "--tls-auth-clients", "yes", "--tls-replication", "yes"]


def tls_query(folder: Path, **options: str) -> str:
    """The certificates of a folder as a URL's options; an empty one is left out."""
    given = {"ssl_ca_certs": "ca.pem", "ssl_certfile": "server.pem", "ssl_keyfile": "key.pem", **options}
    return "&".join(f"{name}={folder / value}" for name, value in given.items() if value)


def linked(server: RedisServer, tls: Path | None) -> str:
    """The port on which the others reach a server."""
    return str(server.port) if tls is None else server.option("--tls-port")


@contextmanager
def tls_server(binary: str, folder: Path) -> Iterator[tuple[RedisServer, int]]:
    """A server with a certificate of an authority of our own (``ca.pem``), and its TLS port; clients need one too."""
    make_certificates(folder)
    with RedisServer(binary, config=tls_options(folder)) as server:
        yield server, int(server.option("--tls-port"))


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
