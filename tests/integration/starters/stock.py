"""The engine called directly, in a process of its own that knows nothing of ours: load, ``arun``, read the vertices.

``python stock.py FOLDER`` runs every ``*.json`` in FOLDER once, in the files' order, and prints one JSON object:
``{name: {"outputs": {component: {output: value}}, "built": [component], "error": text}}``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

USER = "00000000-0000-4000-8000-000000000001"


def value_of(value: Any) -> Any:
    """A component's value as JSON, by its kind."""
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return {"rows": value.to_dict(orient="records")}
    if hasattr(value, "sender") and hasattr(value, "text"):
        return {"text": value.text}
    if hasattr(value, "data"):
        return {"data": value.data}
    return {"value": value}


async def run(path: Path, text: str) -> dict[str, Any]:
    """One flow, once."""
    from lfx.graph.graph.base import Graph

    export = json.loads(path.read_text())
    graph = Graph.from_payload(export, flow_id=export["id"], flow_name=export["name"], user_id=USER)
    try:
        await graph.arun(
            [{"input_value": text}],
            inputs_components=[[]],
            types=["any"],
            outputs=[],
            session_id=f"session-{path.stem}",
            fallback_to_env_vars=True,
        )
        error = None
    except Exception as failure:
        error = str(failure)
    built = [vertex for vertex in graph.vertices if vertex.built]
    outputs = {
        vertex.id: {name: value_of(value) for name, value in vertex.results.items()}
        for vertex in built
        if vertex.is_output and vertex.results
    }
    return {"outputs": outputs, "built": sorted(vertex.id for vertex in built), "error": error}


async def main(folder: Path, text: str) -> None:
    """All flows of a folder."""
    from lfx.extension.loader import installed_extension_roots, load_extension

    from tests.support.offline import Offline

    for distribution, root in installed_extension_roots().items():
        if distribution == "lfx-openai-compatible":
            load_extension(root, distribution=distribution)
    results = {}
    with Offline().guard():
        for path in sorted(folder.glob("*.json")):
            results[path.stem] = await run(path, text)
    os.write(ANSWER, json.dumps(results, default=str).encode())


if __name__ == "__main__":
    ANSWER = os.dup(1)
    os.dup2(2, 1)  # components print
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
