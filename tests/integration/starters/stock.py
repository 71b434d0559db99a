"""The engine called directly, in a process of its own that knows nothing of ours: load, ``arun``, read the vertices.

``python stock.py FOLDER TEXT`` runs every file of FOLDER/without without a session, and then those of FOLDER/within in
sessions of their own, with Langflow's database for the chat memory. It prints one JSON object: ``{"without"|"within":
{name: {"outputs": {component: {output: value}}, "built": [component], "error": text}}}``.
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


async def run(path: Path, text: str, session: str | None) -> dict[str, Any]:
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
            session_id=session,
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


async def open_database() -> None:
    """Give the engine Langflow's database, as a Langflow server has it."""
    from langflow.services.database.factory import DatabaseServiceFactory
    from lfx.services.deps import get_db_service
    from lfx.services.manager import get_service_manager
    from lfx.services.schema import ServiceType

    manager = get_service_manager()
    manager.services.pop(ServiceType.DATABASE_SERVICE, None)
    manager.register_factory(DatabaseServiceFactory())
    await get_db_service().create_db_and_tables()


async def main(folder: Path, text: str) -> None:
    """All flows of a folder."""
    from lfx.extension.loader import installed_extension_roots, load_extension

    from tests.support.offline import Offline

    for distribution, root in installed_extension_roots().items():
        if distribution == "lfx-openai-compatible":
            load_extension(root, distribution=distribution)
    with Offline().guard():
        without = {path.stem: await run(path, text, None) for path in sorted((folder / "without").iterdir())}
        await open_database()
        within = {path.stem: await run(path, text, path.stem) for path in sorted((folder / "within").iterdir())}
    with os.fdopen(ANSWER, "w") as answer:
        json.dump({"without": without, "within": within}, answer, default=str)


if __name__ == "__main__":
    ANSWER = os.dup(1)
    os.dup2(2, 1)  # components print
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
