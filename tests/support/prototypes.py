"""Prototypes of graphs from the first run on, so that a test's few runs have them, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from runtime.engine.accelerators import graph_copies


def _at_once(work: Callable[..., None], *arguments: Any) -> None:
    work(*arguments)


@contextmanager
def prototypes_at_once() -> Iterator[None]:
    """Within this, a flow's first run makes its prototype, and is a copy of it."""
    with mock.patch.multiple(graph_copies, AFTER=1, in_thread=_at_once):
        yield
