"""Fixtures for every test. What needs a server takes one of these."""

from __future__ import annotations

import pytest

from tests.support.servers import (
    broker,
    broker_url,
    real_broker,
    redis_server,
    redis_url,
    server,
    valkey_server,
    valkey_url,
)

__all__ = [
    "broker",
    "broker_url",
    "real_broker",
    "redis_server",
    "redis_url",
    "server",
    "valkey_server",
    "valkey_url",
]


def pytest_configure(config: pytest.Config) -> None:
    """Markers."""
    config.addinivalue_line("markers", "unit: runs without a server and at a unit test's speed")
