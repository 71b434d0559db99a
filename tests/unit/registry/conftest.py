from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.registry.folder import Folder


@pytest.fixture
def flows(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "flows")
