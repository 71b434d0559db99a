"""Fixtures for whole workers and commands."""

from __future__ import annotations

import pytest

from tests.support.provider import provider, stub_server
from tests.support.real import engine, no_litter, shared_engine
from tests.support.servers import RedisServer

__all__ = ["engine", "no_litter", "provider", "shared_engine", "stub_server"]


@pytest.fixture
def server_url(valkey_server: RedisServer) -> str:
    """The session's server, emptied."""
    valkey_server.execute("FLUSHALL")
    return valkey_server.url
