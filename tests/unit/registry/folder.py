"""A flows folder for tests: exports that say just enough, written the way people and tools write them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def export(name: str = "Flow", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "id": f"id-of-{name}",
        "data": {"nodes": [{"id": "ChatInput-1", "data": {}}], "edges": []},
        **more,
    }


class Folder:
    """Writes below a root. ``age`` sets the files' times back, so that nothing counts as just changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def flow(self, path: str, content: Any = None) -> Path:
        return self.write(path, json.dumps(export(Path(path).stem) if content is None else content))

    def write(self, path: str, content: str | bytes) -> Path:
        full = self.root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(content if isinstance(content, bytes) else content.encode())
        return full

    def age(self, seconds: float = 60) -> None:
        for path in self.root.rglob("*"):
            if path.is_file():
                at = path.stat().st_mtime - seconds
                os.utime(path, (at, at))
