"""Fixtures for every test. What needs a server takes one of these."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

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
    """Markers, and hypothesis without its own clock: a busy machine is no fault of a test."""
    settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("headrace")
    config.addinivalue_line("markers", "unit: runs without a server and at a unit test's speed")
