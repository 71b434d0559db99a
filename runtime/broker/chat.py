"""Chat memory: the committed history of a session. Settle writes it; this reads it."""

from __future__ import annotations

import json
from typing import Any

from runtime.broker.connection import Connection
from runtime.broker.keys import RouteKeys


class ChatStore:
    """Reads chat histories."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def load(self, keys: RouteKeys, *, tenant: str | None, session: str) -> list[dict[str, Any]]:
        """A session's messages as they were committed, oldest first."""
        lines = await self._connection.command("LRANGE", keys.chat(tenant, session), 0, -1)
        # A line is the message's id, a line feed, the message.
        return [json.loads(line.partition(b"\n")[2]) for line in lines]
