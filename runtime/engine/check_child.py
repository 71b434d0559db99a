"""The checker's process: reads flows on its standard input, one JSON line each, and answers each with a report.

Loading a flow executes code of the flow, so all of it happens here, where a flow that hangs, exits, prints or reaches
for the network harms nobody. Run by ``runtime.engine.check``; the protocol is theirs alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from runtime.engine.base import FlowSource
from runtime.engine.report import FlowReport

READY = "ready"


def source_to_json(source: FlowSource) -> dict[str, Any]:
    """A flow for the wire."""
    return {
        "route": source.route,
        "version": source.version,
        "export": source.export,
        "path": str(source.path),
        "files_dir": str(source.files_dir),
        "upgrade": source.upgrade,
        "variables": sorted(source.variables),
        "without": sorted(source.without),
    }


def source_from_json(data: Mapping[str, Any]) -> FlowSource:
    """A flow from the wire."""
    return FlowSource(
        route=data["route"],
        version=data["version"],
        export=data["export"],
        path=Path(data["path"]),
        files_dir=Path(data["files_dir"]),
        upgrade=data["upgrade"],
        variables=frozenset(data["variables"]),
        without=frozenset(data["without"]),
    )


class Offline:
    """Refuses every connection that leaves the machine, and remembers where to."""

    def __init__(self) -> None:
        self.attempts: list[str] = []

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """An audit hook. It cannot be removed again, which is why it lives in a process of its own."""
        if event == "socket.connect":
            address = args[1]
            if isinstance(address, tuple) and not _is_loopback(str(address[0])):
                self.attempts.append(str(address[0]))
                raise ConnectionRefusedError(f"flows are checked offline: no connection to {address[0]}")
        elif event in ("socket.getaddrinfo", "socket.gethostbyname") and not _is_loopback(_text(args[0])):
            self.attempts.append(_text(args[0]))
            raise socket.gaierror(socket.EAI_NONAME, "flows are checked offline: no names are looked up")

    def taken(self) -> tuple[str, ...]:
        """The hosts since the last call, each once."""
        hosts, self.attempts = tuple(dict.fromkeys(self.attempts)), []
        return hosts


def _text(host: Any) -> str:
    return host.decode("ascii", "replace") if isinstance(host, bytes) else str(host or "")


def _is_loopback(host: str) -> bool:
    return host in ("", "localhost", "::1", "0.0.0.0", os.uname().nodename) or host.startswith("127.")  # noqa: S104  compared with, not bound to


async def serve(requests: Iterator[Mapping[str, Any]], answers: IO[str]) -> None:
    """Answer flows until there are none."""
    from runtime.engine import catalog, inspection  # noqa: PLC0415  its parent reads this module too
    from runtime.engine.langflow import LangflowEngine  # noqa: PLC0415  as above

    offline = Offline()
    sys.addaudithook(offline.hook)
    engine = LangflowEngine()
    await engine.prepare(concurrency=1)
    known = await asyncio.to_thread(catalog.installed)
    offline.taken()
    siblings: dict[str, FlowSource] = {}
    _answer(answers, READY)
    for request in requests:
        if "siblings" in request:
            siblings = {s.route: s for s in map(source_from_json, request["siblings"])}
            engine.set_siblings(siblings)
            continue
        source = source_from_json(request["flow"])
        report: FlowReport = await inspection.inspect(
            source, engine=engine, catalog=known, siblings=siblings, environ=request["environ"]
        )
        if hosts := offline.taken():
            reached = f"while it is loaded, the flow reaches for the network: {', '.join(hosts)}"
            report = report.model_copy(update={"warnings": (*report.warnings, reached)})
        _answer(answers, report.model_dump(mode="json"))


def _answer(answers: IO[str], value: Any) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


@contextmanager
def private_pipes() -> Iterator[tuple[IO[str], IO[str]]]:
    """Our two pipes under numbers of their own: what the flow prints goes to standard error, what it reads is empty."""
    requests, answers = os.dup(0), os.dup(1)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    with os.fdopen(requests, encoding="utf-8") as reader, os.fdopen(answers, "w", encoding="utf-8") as writer:
        yield reader, writer


def _lines(reader: IO[str]) -> Iterator[Mapping[str, Any]]:
    """The requests. When there are no more, or the parent is gone, a flow that still loads must not keep us."""
    waiting: list[str | None] = []
    arrived = threading.Condition()

    def read() -> None:
        for line in reader:
            with arrived:
                waiting.append(line)
                arrived.notify()
        os._exit(0)

    threading.Thread(target=read, name="check-requests", daemon=True).start()
    while True:
        with arrived:
            arrived.wait_for(lambda: waiting)
            line = waiting.pop(0)
        yield json.loads(line or "{}")


def main() -> None:
    """Serve until the parent closes our standard input."""
    with private_pipes() as (reader, writer):
        asyncio.run(serve(_lines(reader), writer))


if __name__ == "__main__":
    main()
