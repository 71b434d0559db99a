"""The lock: every package in one version, by whole digests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", ["requirements.lock", "tests/redis-8.lock", "tests/kubectl.lock"])
def test_t48_the_lock_has_whole_digests(path: str):
    """A shortened digest is one that another content can be found for."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / path).read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert lines
    for line in lines:
        name, *digests = line.split(" --hash=")
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[^\s=]+( ; .+)?", name.strip()), name
        assert digests, name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest.strip()) for digest in digests), name
