"""Secrets that a route's spec names: where they are, never what they are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared_models.route import SecretSource


def live_secrets(sources: Sequence[SecretSource], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Those that are there now. Read anew for each use, so that one that is rotated takes effect at once."""
    return [value for value in (_secret(source, environ) for source in sources) if value]


def _secret(source: SecretSource, environ: Mapping[str, str]) -> str:
    if source.env is not None:
        return environ.get(source.env, "").strip()
    try:
        return Path(source.file or "").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
