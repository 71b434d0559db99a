"""For all tests that run the engine."""

from __future__ import annotations

from tests.support.real import no_litter

__all__ = ["no_litter"]
