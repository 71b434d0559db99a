"""A model server that costs next to nothing, as a process of its own: ``python -m tests.benchmarks.stub``.

It prints its port. It speaks just enough HTTP and OpenAI for the flows of the benchmarks: a chat answers with a fixed
text; one that has tools and has not used any is asked to use the calculator first. ``PUT /latency/1.5`` sets how many
seconds every answer takes from now on. It listens on 127.0.0.2, since the engine rewrites 127.0.0.1 in a container.
"""

from __future__ import annotations

import asyncio
import ctypes
import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HOST = "127.0.0.2"

_BASE = {"id": "chatcmpl-1", "created": 1, "model": "stub-model"}
_USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
_TEXT = "The answer of a model that does not think."
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "evaluate_expression", "arguments": '{"expression": "6*7"}'},
}


def _whole(message: dict[str, object], finish: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    body = json.dumps({**_BASE, "object": "chat.completion", "choices": [choice], "usage": _USAGE}).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _streamed(delta: dict[str, object], finish: str) -> bytes:
    deltas = [({"role": "assistant", "content": ""}, None), (delta, None), ({}, finish)]
    chunks = [{"choices": [{"index": 0, "delta": d, "finish_reason": f}]} for d, f in deltas]
    chunks.append({"choices": [], "usage": _USAGE})
    lines = [f"data: {json.dumps({**_BASE, 'object': 'chat.completion.chunk', **chunk})}\n\n" for chunk in chunks]
    body = ("".join(lines) + "data: [DONE]\n\n").encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


_ANSWERS = {
    # (is asked to stream, is to use a tool)
    (False, False): _whole({"content": _TEXT}, "stop"),
    (False, True): _whole({"content": None, "tool_calls": [_CALL]}, "tool_calls"),
    (True, False): _streamed({"content": _TEXT}, "stop"),
    (True, True): _streamed({"tool_calls": [{**_CALL, "index": 0}]}, "tool_calls"),
}
_NOTHING = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{"data":[]}'


class _Connection(asyncio.Protocol):
    """One client: requests one after the other, each whole before it is answered."""

    latency = 0.0

    def __init__(self) -> None:
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            place = head.find(b"content-length:")
            size = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
            if len(self._data) < end + 4 + size:
                return
            body = self._data[end + 4 : end + 4 + size]
            self._data = self._data[end + 4 + size :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"put /latency/"):
            _Connection.latency = float(head.split(b" ")[1].rsplit(b"/", 1)[1])
            self._write(_NOTHING)
            return
        answer = _NOTHING
        if b"/chat/completions" in head.split(b"\r\n", 1)[0]:
            # As httpx and the OpenAI client write JSON: without blanks. A body in another style is answered in full.
            streams = b'"stream":true' in body
            answer = _ANSWERS[streams, b'"tools":[' in body and b'"role":"tool"' not in body]
        if self.latency:
            asyncio.get_running_loop().call_later(self.latency, self._write, answer)
        else:
            self._write(answer)

    def _write(self, answer: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)


class Stub:
    """The running server, seen from another process."""

    def __init__(self, port: int) -> None:
        self._port = port

    @property
    def url(self) -> str:
        """The base URL, with /v1."""
        return f"http://{HOST}:{self._port}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """What makes Langflow's provider "OpenAI" use it: the one that ``lfx serve`` knows without an extension."""
        return {"OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": "sk-stub"}

    def take(self, seconds: float) -> None:
        """Every answer takes so long from now on."""
        line = http.client.HTTPConnection(HOST, self._port, timeout=10)
        line.request("PUT", f"/latency/{seconds}")
        line.getresponse().read()
        line.close()


@contextmanager
def stub() -> Iterator[Stub]:
    """A stub server, until the block ends."""
    process = subprocess.Popen([sys.executable, "-m", "tests.benchmarks.stub"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Stub(int(process.stdout.readline()))
    finally:
        process.terminate()
        process.wait(10)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, HOST, 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: it ends with the benchmark
    asyncio.run(_serve())
