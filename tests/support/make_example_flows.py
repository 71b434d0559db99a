"""Make the example flows anew: a scratch Langflow server builds them, its download endpoint exports them.

    python -m tests.support.make_example_flows [--out flows] [--only NAME ...]

The program does over HTTP what a person does in the editor: it takes the components from the server's own catalogue,
sets fields (through the server's refresh endpoint where the editor would), draws edges, saves the flow and downloads
it. What the download endpoint answers is written byte for byte. Run it in an environment that has the package
``langflow``, for each new Langflow version; flows/README.md says what to look at afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_TIMEOUT = 600.0
"""Seconds; a cold start of the full package took 60 s on two cores."""


class Server:
    """The HTTP API of a Langflow server that logs its only user in by itself."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._headers = {"Content-Type": "application/json"}

    def log_in(self) -> None:
        """Take the token of the server's own user."""
        self._headers["Authorization"] = f"Bearer {self.call('GET', '/api/v1/auto_login')['access_token']}"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to one request, parsed. Raises RuntimeError with the server's own words."""
        return json.loads(self.raw(method, path, body))

    def raw(self, method: str, path: str, body: Any = None) -> bytes:
        """The answer to one request, as it came."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from error


@contextlib.contextmanager
def scratch_server() -> Iterator[Server]:
    """A Langflow server on loopback with its own home and database, both thrown away at the end."""
    with tempfile.TemporaryDirectory(prefix="example-flows-") as name:
        home = Path(name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": name,
            "LANGFLOW_CONFIG_DIR": str(home / "config"),
            "LANGFLOW_DATABASE_URL": f"sqlite:///{home / 'langflow.db'}",
            "LANGFLOW_AUTO_LOGIN": "true",
            "LANGFLOW_SKIP_AUTH_AUTO_LOGIN": "true",
            "LANGFLOW_BACKEND_ONLY": "true",
            "LANGFLOW_CREATE_STARTER_PROJECTS": "false",
            "DO_NOT_TRACK": "true",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            # The server takes this for a configured provider, so that its models can be selected. It is never used.
            "OPENAI_API_KEY": "not-a-key",
        }
        (home / "config").mkdir()
        command = [
            sys.executable,
            "-m",
            "langflow",
            "run",
            "--backend-only",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(command, env=environ, cwd=name, stdout=log, stderr=log)
        try:
            server = Server(f"http://127.0.0.1:{port}")
            _wait(server, process, home / "log")
            server.log_in()
            yield server
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, RuntimeError):
            server.raw("GET", "/health")
            return
        time.sleep(1)
    raise RuntimeError(f"the Langflow server did not start:\n{log.read_text(errors='replace')[-4000:]}")


@dataclass
class Canvas:
    """One flow on the server's canvas, in the editor's own format."""

    server: Server
    id: str
    name: str
    description: str
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    edges: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, id: str, at: tuple[int, int], fields: Mapping[str, Any] | None = None) -> str:
        """Put component ``kind`` on the canvas as ``kind-id``, with fields set; a ``Variable`` binds its field."""
        component = copy.deepcopy(_catalogue(self.server)[kind])
        for name, value in (fields or {}).items():
            component = self._set(kind, component, name, value)
        node_id = f"{kind.replace(' ', '')}-{id}"
        self.nodes[node_id] = {
            "id": node_id,
            "type": "genericNode",
            "position": {"x": at[0], "y": at[1]},
            "measured": {"width": 320, "height": 230},
            "selected": False,
            "dragging": False,
            "data": {"id": node_id, "type": kind, "node": component, "showNode": True},
        }
        return node_id

    def note(self, id: str, at: tuple[int, int], text: str, size: tuple[int, int] = (320, 324)) -> None:
        """Put a note on the canvas, for the person who opens the flow in the editor."""
        width, height = size
        self.nodes[f"note-{id}"] = {
            "id": f"note-{id}",
            "type": "noteNode",
            "position": {"x": at[0], "y": at[1]},
            "measured": {"width": width, "height": height},
            "width": width,
            "height": height,
            "style": {"width": width, "height": height},
            "selected": False,
            "dragging": False,
            "resizing": False,
            "data": {
                "id": f"note-{id}",
                "type": "note",
                "node": {
                    "description": text,
                    "display_name": "",
                    "documentation": "",
                    "template": {"backgroundColor": "neutral"},
                },
            },
        }

    def edge(self, source: str, output: str, target: str, input: str) -> None:
        """Connect an output to an input field."""
        out = next(o for o in self.nodes[source]["data"]["node"]["outputs"] if o["name"] == output)
        into = self.nodes[target]["data"]["node"]["template"][input]
        self.nodes[source]["data"]["selected_output"] = output
        handle_out = {
            "dataType": self.nodes[source]["data"]["type"],
            "id": source,
            "name": output,
            "output_types": [out["selected"]],
        }
        handle_in = {"fieldName": input, "id": target, "inputTypes": into["input_types"], "type": into["type"]}
        ends = [_handle(handle_out), _handle(handle_in)]
        self.edges.append(
            {
                "id": f"xy-edge__{source}{ends[0]}-{target}{ends[1]}",
                "source": source,
                "sourceHandle": ends[0],
                "target": target,
                "targetHandle": ends[1],
                "data": {"sourceHandle": handle_out, "targetHandle": handle_in},
                "animated": False,
                "className": "",
                "selected": False,
            }
        )

    def export(self) -> bytes:
        """Save the flow on the server and download it."""
        body = {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "data": {
                "nodes": list(self.nodes.values()),
                "edges": self.edges,
                "viewport": {"x": 60, "y": 60, "zoom": 0.7},
            },
        }
        saved = self.server.call("POST", "/api/v1/flows/", body)
        return self.server.raw("POST", "/api/v1/flows/download/", [saved["id"]])

    def _set(self, kind: str, component: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
        field_ = component["template"][name]
        if isinstance(value, Variable):
            field_ |= {"value": value.name, "load_from_db": True}
            return component
        field_["value"] = value
        if field_.get("type") == "prompt":
            body = {"name": name, "template": value, "frontend_node": component}
            return self.server.call("POST", "/api/v1/validate/prompt", body)["frontend_node"]
        if field_.get("real_time_refresh"):
            body = {
                "code": component["template"]["code"]["value"],
                "template": component["template"],
                "frontend_node": component,
                "field": name,
                "field_value": value,
            }
            return self.server.call("POST", "/api/v1/custom_component/update", body)
        return component


@dataclass(frozen=True)
class Variable:
    """A field's value that is read from the global variable ``name`` when the flow runs."""

    name: str


def _handle(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).replace('"', "œ")


_CATALOGUES: dict[str, dict[str, Any]] = {}


def _catalogue(server: Server) -> dict[str, Any]:
    if server.url not in _CATALOGUES:
        groups = server.call("GET", "/api/v1/all")
        _CATALOGUES[server.url] = {k: v for g in groups.values() if isinstance(g, dict) for k, v in g.items()}
    return _CATALOGUES[server.url]


# --- the flows ------------------------------------------------------------------------------------------------------
# The flows' ids are fixed, so that an export made anew replaces the old flow where it is imported again.


def hello(server: Server) -> bytes:
    """What comes in goes out."""
    flow = Canvas(server, "6c0a2b5e-3f0d-4a53-9d2c-8f0f5a6f1c01", "hello", "Answers with what it was sent.")
    first = flow.add("ChatInput", "hello", (0, 0))
    last = flow.add("ChatOutput", "hello", (480, 0))
    flow.edge(first, "message", last, "input_value")
    return flow.export()


def router(server: Server) -> bytes:
    """Decides by a regular expression which of two workers gets the task."""
    flow = Canvas(
        server,
        "0d4b7a1c-52c8-4a3e-8a55-2f6f4f3f1c02",
        "router",
        "Sends a task to the database worker if it speaks of databases, else to the code worker. Needs no model.",
    )
    flow.note(
        "router",
        (0, -400),
        "### Router\nEvents of `agent_jobs:ingress` come in here. **If-Else** decides; the branch that is not taken "
        "gives no output. `router.yaml` publishes to `agent_jobs:db` or `agent_jobs:code_gen`, by which output there "
        "is.\n\nCase True and Case False stay empty: the task itself is passed on.",
        (420, 340),
    )
    task = flow.add("ChatInput", "task", (0, 0))
    decide = flow.add(
        "ConditionalRouter",
        "decide",
        (480, 0),
        {"operator": "regex", "match_text": r"(?is).*\b(sql|select|database|table|query|queries|rows?)\b"},
    )
    database = flow.add("ChatOutput", "db", (960, -160), {"sender_name": "router"})
    code = flow.add("ChatOutput", "code_gen", (960, 160), {"sender_name": "router"})
    flow.edge(task, "message", decide, "input_text")
    flow.edge(decide, "true_result", database, "input_value")
    flow.edge(decide, "false_result", code, "input_value")
    return flow.export()


def code_gen(server: Server) -> bytes:
    """The worker for code."""
    return _worker(
        server,
        "1f9d8c3e-70a6-4f5b-9b7e-5c1d2e3f1c03",
        "code-gen",
        "[code_gen] This is where a model would write the code for: {task}",
    )


def db(server: Server) -> bytes:
    """The worker for databases."""
    return _worker(
        server,
        "2a7e6f4d-91b4-4c8d-8c1f-7d3e4f5a1c04",
        "db",
        "[db] This is where a model would write the query for: {task}",
    )


def _worker(server: Server, id: str, name: str, template: str) -> bytes:
    flow = Canvas(server, id, name, "A worker of the example pipeline. Put a Language Model after the prompt.")
    task = flow.add("ChatInput", "task", (0, 0))
    prompt = flow.add("Prompt Template", "answer", (480, 0), {"template": template})
    answer = flow.add("ChatOutput", "answer", (960, 0), {"sender_name": name})
    flow.edge(task, "message", prompt, "task")
    flow.edge(prompt, "prompt", answer, "input_value")
    return flow.export()


def chat(server: Server) -> bytes:
    """A chat that remembers the session's earlier messages."""
    for name in ("OPENAI_API_KEY", "CHAT_MODEL"):  # the download keeps only bindings to variables that exist
        if all(v["name"] != name for v in server.call("GET", "/api/v1/variables/")):
            server.call(
                "POST", "/api/v1/variables/", {"name": name, "value": "-", "type": "Generic", "default_fields": []}
            )
    flow = Canvas(
        server,
        "3b8f705e-a2c5-4d9e-9d20-8e4f506b1c05",
        "chat",
        "A chat that remembers its session. Needs OPENAI_API_KEY; OPENAI_BASE_URL chooses another server.",
    )
    flow.note(
        "chat",
        (0, -560),
        "### Chat with memory\n**Message History** gives the session's earlier messages to the prompt; Chat Input and "
        "Chat Output store the new ones. The key comes from the variable `OPENAI_API_KEY`, the model's name from "
        "`CHAT_MODEL`.",
        (420, 300),
    )
    question = flow.add("ChatInput", "question", (0, 160))
    history = flow.add("Memory", "history", (0, -220), {"n_messages": 20})
    prompt = flow.add(
        "Prompt Template",
        "system",
        (480, -220),
        {
            "template": "You are a helpful assistant. Answer briefly.\n\n"
            "The conversation so far, oldest first; it may be empty:\n{history}"
        },
    )
    option = next(o for o in _model_options(flow) if (o["provider"], o["name"]) == ("OpenAI", "gpt-5.4-mini"))
    model = flow.add(
        "LanguageModelComponent",
        "model",
        (960, 0),
        {"model": [option], "model_name": Variable("CHAT_MODEL"), "api_key": Variable("OPENAI_API_KEY")},
    )
    answer = flow.add("ChatOutput", "answer", (1440, 0), {"sender_name": "chat"})
    flow.edge(history, "messages_text", prompt, "history")
    flow.edge(prompt, "prompt", model, "system_message")
    flow.edge(question, "message", model, "input_value")
    flow.edge(model, "text_output", answer, "input_value")
    return flow.export()


def _model_options(flow: Canvas) -> list[dict[str, Any]]:
    component = copy.deepcopy(_catalogue(flow.server)["LanguageModelComponent"])
    refreshed = flow._set("LanguageModelComponent", component, "model", [])
    return refreshed["template"]["model"]["options"]


FLOWS = {"hello": hello, "router": router, "code-gen": code_gen, "db": db, "chat": chat}


def main() -> None:
    """Write the exports into a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("flows"))
    parser.add_argument("--only", nargs="*", choices=sorted(FLOWS), default=sorted(FLOWS))
    parser.add_argument("--url", help="a running server with auto login; without it, one is started")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if options.url:
            server = Server(options.url)
            server.log_in()
        else:
            server = stack.enter_context(scratch_server())
        print("Langflow", server.call("GET", "/api/v1/version")["version"])
        for name in options.only:
            path = options.out / f"{name}.json"
            path.write_bytes(FLOWS[name](server))
            print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
