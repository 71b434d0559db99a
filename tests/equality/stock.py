"""The engine called directly, in a process of its own that knows nothing of ours: load, ``arun``, look at the graph.

``python -m tests.equality.stock PLAN FOLDER``: each flow of the plan, run after run, with a stub model; the runs
without a session first, then the others with Langflow's database for the chat memory. It writes
``FOLDER/outcomes.json``: ``{"routes": {route: {run: outcome, "files": {path: hash}}}}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.equality import answers, outcome
from tests.equality.plan import Case, Plan, Run
from tests.support.offline import Offline
from tests.support.provider import StubProvider

USER = "00000000-0000-4000-8000-000000000001"


async def run_once(case: Case, run: Run, provider: StubProvider, folder: Path) -> Any:
    """One flow, once."""
    from lfx.graph.graph.base import Graph

    export = case.export()
    if case.reads is not None:
        path = folder / "config" / export["id"] / f"report-{run.index}" / "report.txt"
        path.parent.mkdir(parents=True)
        path.write_text(run.report)
        node = next(node for node in export["data"]["nodes"] if node["id"] == case.reads)
        node["data"]["node"]["template"]["path"]["file_path"] = [str(path)]
    os.environ["OPENAI_COMPATIBLE_API_KEY"] = run.key
    graph: Any = None
    failure: Exception | None = None
    try:
        graph = Graph.from_payload(export, flow_id=export["id"], flow_name=export["name"], user_id=USER)
        await graph.arun(
            [{"input_value": run.text}],
            inputs_components=[[]],
            types=["any"],
            outputs=[],
            session_id=run.session,
            fallback_to_env_vars=True,
        )
    except Exception as error:
        failure = error
    told = outcome.of_graph(graph, failure)
    told["messages"] = outcome.of_messages(await stored(export["id"], run.session)) if run.session else []
    told["requests"] = outcome.of_requests(provider.requests, run.key)
    provider.requests.clear()
    return outcome.settled(told, folder)


async def stored(flow: str, session: str) -> list[dict[str, Any]]:
    """The messages of a flow's session, oldest first; also those of errors, which the engine's own reading omits."""
    from langflow.services.database.models.message.model import MessageTable
    from langflow.services.deps import session_scope
    from sqlmodel import select

    mine = (MessageTable.session_id == session, MessageTable.flow_id == UUID(flow))
    async with session_scope() as database:
        rows = await database.exec(select(MessageTable).where(*mine))
        return [row.model_dump() for row in sorted(rows, key=lambda row: row.timestamp)]


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


async def run_all(plan: Plan, folder: Path, provider: StubProvider) -> dict[str, dict[str, Any]]:
    """Every flow's runs, and the files that they left."""
    done: dict[str, dict[str, Any]] = {case.route: {"files": {}} for case in plan.cases}
    for within in (False, True):
        if within:
            await open_database()
        for case in plan.cases:
            before = outcome.files(folder)
            for run in case.runs(plan.stock):
                if bool(run.session) is within:
                    done[case.route][str(run.index)] = await run_once(case, run, provider, folder)
            left = dict(outcome.files(folder).items() - before.items())
            done[case.route]["files"].update(outcome.settled(left, folder))
    return done


async def main(plan: Plan, folder: Path) -> None:
    """Load what the flows' models need, run everything, write what became of it."""
    from lfx.extension.loader import installed_extension_roots, load_extension

    for distribution, root in installed_extension_roots().items():
        if distribution == "lfx-openai-compatible":
            load_extension(root, distribution=distribution)
    with contextlib.suppress(ImportError):
        importlib.import_module("langflow.api.v2.mcp")  # imports itself: another error the first time
    provider = StubProvider()
    provider.default = answers.answer
    provider.start()
    os.environ["OPENAI_COMPATIBLE_BASE_URL"] = provider.url
    with Offline().guard():
        done = await run_all(plan, folder, provider)
    provider.stop()
    (folder / "outcomes.json").write_text(json.dumps({"routes": done}))


if __name__ == "__main__":
    asyncio.run(main(Plan.read(Path(sys.argv[1])), Path(sys.argv[2])))
