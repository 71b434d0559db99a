"""Reading Server-Sent Events with httpx."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Sent:
    """One event as it came; a comment has no kind."""

    kind: str = ""
    id: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    comment: str = ""


async def events(response: httpx.Response) -> AsyncIterator[Sent]:
    """The events of a response, as they come."""
    block: list[str] = []
    async for line in response.aiter_lines():
        if line:
            block.append(line)
            continue
        one = Sent()
        for part in block:
            name, _, value = part.partition(": ")
            if name == "":
                one.comment = value
            elif name == "id":
                one.id = value
            elif name == "event":
                one.kind = value
            elif name == "data":
                one.data = json.loads(value)
        block = []
        yield one


async def told(http: httpx.AsyncClient, path: str, *, last: str | None = None) -> list[Sent]:
    """All events of a stream, to its end."""
    headers = {"last-event-id": last} if last is not None else {}
    async with http.stream("GET", path, headers=headers) as response:
        if response.status_code == 204:
            return []
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        return [one async for one in events(response) if one.kind]
