"""One cluster and one TLS server for the tests that leave them alive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import redis_binary, valkey_binary
from tests.support.topology import Cluster, cluster, tls_server


@pytest.fixture(scope="package", params=["valkey", "redis"])
def a_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(valkey_binary() if request.param == "valkey" else redis_binary()) as made:
        yield made


@pytest.fixture(scope="package")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    folder = tmp_path_factory.mktemp("tls")
    with tls_server(redis_binary(), folder) as (_, port):
        yield port, folder
