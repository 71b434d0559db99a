"""A component that a test holds by the hand: each execution reports to the test and does what the test answers.

``flow(place)`` makes a flow whose component connects to the Rendezvous at ``place``, says its input, and waits for the
answer: a text to return, or a failure to raise. The connections are the ledger of executions; one that ends without an
answer is an execution that died.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tests.support.flows import Flow, component
from tests.support.harness import DEADLINE

BODY = """
    def work(self) -> Message:
        import os, socket
        from types import SimpleNamespace
        host, port = self.place.split(":")
        with socket.create_connection((host, int(port)), timeout=60) as line:
            line.sendall(f"{os.getpid()} {self.text}\\n".encode())
            answer = line.makefile(encoding="utf-8").readline().rstrip("\\n")
        kind, _, said = answer.partition(" ")
        if kind == "say":
            return Message(text=said)
        if kind == "exit":
            os._exit(int(said))
        if kind == "busy":
            error = ConnectionError("busy, come back later")
            error.response = SimpleNamespace(status_code=503, headers={"retry-after": said})
            raise error
        raise RuntimeError(said or "nobody answered")
"""


def flow(place: str, *, name: str = "Held by the hand") -> Flow:
    """ChatInput to the component to ChatOutput."""
    made = Flow(name)
    chat_in = made.add("ChatInput", "ChatInput-in")
    inputs = 'MessageTextInput(name="place", display_name="Place")'
    custom = made.custom(component(BODY, name="Held", inputs=inputs), "Held-it", place=place)
    chat_out = made.add("ChatOutput", "ChatOutput-out")
    made.connect(chat_in, "message", custom, "text")
    made.connect(custom, "out", chat_out, "input_value")
    return made


@dataclass
class Meeting:
    """One execution of the component, which waits."""

    text: str
    pid: int
    writer: asyncio.StreamWriter = field(repr=False)

    async def say(self, text: str | None = None) -> None:
        """Let it return a text: by default what it was told."""
        await self._answer(f"say {self.text if text is None else text}")

    async def fail(self, why: str) -> None:
        """Let it raise a RuntimeError."""
        await self._answer(f"fail {why}")

    async def busy(self, seconds: float) -> None:
        """Let it raise what a service's 503 with a Retry-After becomes."""
        await self._answer(f"busy {seconds:g}")

    async def exit(self, code: int = 1) -> None:
        """Let it end its process at once."""
        await self._answer(f"exit {code}")

    async def _answer(self, line: str) -> None:
        self.writer.write(f"{line}\n".encode())
        await self.writer.drain()


class Rendezvous:
    """Where executions report. ``ledger`` has the text of each, in order."""

    def __init__(self) -> None:
        self.ledger: list[str] = []
        self._waiting: asyncio.Queue[Meeting] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.StreamWriter] = set()

    @property
    def place(self) -> str:
        """What ``flow`` takes."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def met(self, *, timeout: float = DEADLINE) -> Meeting:
        """The next execution."""
        async with asyncio.timeout(timeout):
            return await self._waiting.get()

    @property
    def idle(self) -> bool:
        """Whether no execution has reported that was not met."""
        return self._waiting.empty()

    async def __aenter__(self) -> Rendezvous:
        self._server = await asyncio.start_server(self._report, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: Any) -> None:
        assert self._server is not None
        self._server.close()
        for line in self._lines:
            line.close()

    async def _report(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.add(writer)
        pid, _, text = (await reader.readline()).decode().rstrip("\n").partition(" ")
        self.ledger.append(text)
        self._waiting.put_nowait(Meeting(text, int(pid), writer))
