"""The least that an answer can be: an ASGI function under uvicorn that XADDs a body and answers 202.

``python -m tests.benchmarks.bare_asgi REDIS_URL`` listens on a free port of loopback and prints its URL. No checks, no
ids, no records: what is left is the server, the client of Redis and the machine.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import redis.asyncio
import uvicorn
import uvloop

from runtime.gateway.server import listen

ANSWER = b'{"status":"accepted"}'


async def _serve(url: str) -> None:
    client, socket = redis.asyncio.Redis.from_url(url), listen("127.0.0.1", 0)

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        await client.xadd("bare", {"payload": body})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
        await send({"type": "http.response.start", "status": 202, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER})

    server = uvicorn.Server(uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False))
    host, port = socket.getsockname()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    await server.serve([socket])


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sys.argv[1]))
