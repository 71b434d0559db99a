"""For all tests that run the engine."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_litter() -> Iterator[None]:
    """Collect what runs left behind while the module's own filter for warnings holds.

    A model component's HTTP clients close their sockets when they are collected, with a ResourceWarning. Later, that
    would be an error in a test of somebody else.
    """
    yield
    gc.collect()
