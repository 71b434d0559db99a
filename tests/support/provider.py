"""An OpenAI-compatible model server for tests: chat (streamed too), embeddings, models, and scripted trouble.

It answers on 127.0.0.2, since the engine rewrites localhost and 127.0.0.1 where it believes to be in a container, and
from a thread of its own, so that a blocked event loop in the test does not stop it. Tests script it with behaviours, in
order; when the script is empty it follows ``default``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn

HOST = "127.0.0.2"
DEADLINE = 30.0


@dataclass(frozen=True)
class Say:
    """Answer with ``text``, word by word if a stream is asked for, after ``delay`` seconds."""

    text: str
    delay: float = 0.0


@dataclass(frozen=True)
class Echo:
    """Answer ``echo: `` and the last user message."""

    delay: float = 0.0


@dataclass(frozen=True)
class Transcript:
    """Answer with all messages as JSON: what the model was given."""


@dataclass(frozen=True)
class Status:
    """Answer with an HTTP status and an OpenAI error body."""

    status: int
    code: str | None = None
    message: str = "scripted trouble"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ToolCall:
    """Ask for a tool. ``arguments`` is a JSON object, or the raw text where it should not parse."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    call_id: str = "call_1"


@dataclass(frozen=True)
class Hang:
    """Never answer, until the client goes away or the server stops."""


Behaviour = Say | Echo | Transcript | Status | ToolCall | Hang
Script = Behaviour | Callable[[Mapping[str, Any]], Behaviour]


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    client: tuple[str, int]
    """The other end of the connection."""

    @property
    def key(self) -> str:
        """The bearer token."""
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The chat so far."""
        return list(self.body.get("messages", []))

    def texts(self, role: str) -> list[str]:
        """What each message of a role says."""
        return [_text(m) for m in self.messages if m.get("role") == role]


class StubProvider:
    """The server and its script."""

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self.cancelled = 0
        """Requests whose client went away before the answer."""
        self.default: Script = Echo()
        self._script: deque[Script] = deque()
        self._arrived = threading.Condition()
        self._socket = socket.create_server((HOST, 0), backlog=512)
        config = uvicorn.Config(self._app, log_config=None, lifespan="off", access_log=False, interface="asgi3")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="stub-provider", daemon=True)

    @property
    def url(self) -> str:
        """The base URL, with /v1."""
        return f"http://{HOST}:{self._socket.getsockname()[1]}/v1"

    def script(self, *behaviours: Script) -> None:
        """Follow these in order, then ``default``."""
        self._script.extend(behaviours)

    def reset(self) -> None:
        """Forget requests and script."""
        self.requests.clear()
        self._script.clear()
        self.default = Echo()
        self.cancelled = 0

    @property
    def chats(self) -> list[Seen]:
        """The chat requests."""
        return [seen for seen in self.requests if seen.path.endswith("/chat/completions")]

    def wait_for(self, count: int, *, what: Callable[[StubProvider], int] = lambda s: len(s.chats)) -> None:
        """Wait until ``count`` chats (or ``what``) were seen. Raises AssertionError after 30 s."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: what(self) >= count, DEADLINE), f"only {what(self)} of {count} came"

    def start(self) -> None:
        """Start serving."""
        self._thread.start()
        until = time.monotonic() + DEADLINE
        while not self._server.started:
            assert time.monotonic() < until and self._thread.is_alive(), "the stub provider did not start"
            time.sleep(0.005)

    def stop(self) -> None:
        """Stop serving; hanging requests are dropped."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(DEADLINE)
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
            asyncio.run(self._server.serve(sockets=[self._socket]))

    async def _app(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        raw = b""
        more = True
        while more:
            message = await receive()
            raw += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        seen = Seen(scope["path"], json.loads(raw) if raw else {}, headers, tuple(scope["client"]))
        with self._arrived:
            self.requests.append(seen)
            self._arrived.notify_all()
        if seen.path.endswith("/models"):
            await _json(send, 200, {"object": "list", "data": [{"id": "stub-model", "object": "model"}]})
        elif seen.path.endswith("/embeddings"):
            await _json(send, 200, _embeddings(seen.body))
        else:
            await self._chat(seen, receive, send)

    async def _chat(self, seen: Seen, receive: Any, send: Any) -> None:
        script = self._script.popleft() if self._script else self.default
        behaviour = script if isinstance(script, Behaviour) else script(seen.body)
        gone = asyncio.ensure_future(_disconnected(receive))
        answer = asyncio.ensure_future(_answer(behaviour, seen, send))
        done, _ = await asyncio.wait({gone, answer}, return_when=asyncio.FIRST_COMPLETED)
        for task in (gone, answer):
            task.cancel()
        if answer not in done:
            with self._arrived:
                self.cancelled += 1
                self._arrived.notify_all()
        else:
            answer.result()


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(behaviour: Behaviour, seen: Seen, send: Any) -> None:
    match behaviour:
        case Hang():
            await asyncio.Event().wait()
        case Status():
            error = {"message": behaviour.message, "type": behaviour.code or "error", "code": behaviour.code}
            await _json(send, behaviour.status, {"error": error}, behaviour.headers)
        case ToolCall():
            await _say(seen, send, "", tool=behaviour)
        case Say() | Echo() | Transcript():
            await asyncio.sleep(getattr(behaviour, "delay", 0.0))
            await _say(seen, send, _wording(behaviour, seen))


def _wording(behaviour: Say | Echo | Transcript, seen: Seen) -> str:
    if isinstance(behaviour, Say):
        return behaviour.text
    if isinstance(behaviour, Transcript):
        return json.dumps([[m.get("role"), _text(m)] for m in seen.messages])
    return "echo: " + (seen.texts("user") or [""])[-1]


async def _say(seen: Seen, send: Any, text: str, *, tool: ToolCall | None = None) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": max(1, len(text.split())), "total_tokens": 0}
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    base = {"id": "chatcmpl-1", "created": 1, "model": seen.body.get("model", "stub-model")}
    calls = [_tool_call(tool)] if tool else None
    finish = "tool_calls" if tool else "stop"
    if not seen.body.get("stream"):
        message = {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        await _json(send, 200, {**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        return
    await _head(send, 200, {"content-type": "text/event-stream"})
    async for delta in _deltas(text, calls):
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        await _event(send, {**base, "object": "chat.completion.chunk", "choices": [choice]})
    last = {"index": 0, "delta": {}, "finish_reason": finish}
    await _event(send, {**base, "object": "chat.completion.chunk", "choices": [last]})
    await _event(send, {**base, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


async def _deltas(text: str, calls: list[dict[str, Any]] | None) -> AsyncIterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    if calls:
        yield {"tool_calls": [{**calls[0], "index": 0}]}
    for piece in _pieces(text):
        yield {"content": piece}


def _pieces(text: str) -> Iterator[str]:
    words = text.split(" ")
    for place, word in enumerate(words):
        yield word if place == 0 else f" {word}"


def _tool_call(tool: ToolCall) -> dict[str, Any]:
    arguments = tool.arguments if isinstance(tool.arguments, str) else json.dumps(tool.arguments)
    return {"id": tool.call_id, "type": "function", "function": {"name": tool.name, "arguments": arguments}}


def _embeddings(body: Mapping[str, Any]) -> dict[str, Any]:
    inputs = body.get("input", [])
    count = len(inputs) if isinstance(inputs, list) else 1
    data = [{"object": "embedding", "index": i, "embedding": [0.1, 0.2, 0.3]} for i in range(count)]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return {"object": "list", "data": data, "model": body.get("model", "stub-embedding"), "usage": usage}


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content or ""


async def _head(send: Any, status: int, headers: Mapping[str, str]) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def _event(send: Any, body: Mapping[str, Any]) -> None:
    await send({"type": "http.response.body", "body": f"data: {json.dumps(body)}\n\n".encode(), "more_body": True})


async def _json(send: Any, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
    await _head(send, status, {"content-type": "application/json", **(headers or {})})
    await send({"type": "http.response.body", "body": json.dumps(body).encode(), "more_body": False})


@pytest.fixture(scope="session")
def stub_server() -> Iterator[StubProvider]:
    """The stub provider, once per session. Use ``provider``."""
    stub = StubProvider()
    stub.start()
    yield stub
    stub.stop()


@pytest.fixture
def provider(stub_server: StubProvider) -> StubProvider:
    """The stub provider with an empty script."""
    stub_server.reset()
    return stub_server
